"""The doctor's probes: `python -m lsgd.doctor.probe ANSWER LIMIT PROBE …`, a process for each.

Each probe imports the library that it is about and yields facts for JSON, each time all that it
knows by then, so that a later crash does not take the earlier facts with it.
"""

import io
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsgd import paths
from lsgd.errors import Refused

if TYPE_CHECKING:
    from lsgd.recipe import Data

Facts = dict[str, Any]

SUMMED_MB = 16
"""Megabytes of a single all-reduce; about the size of a bucket of gradients."""


def main(argv: Sequence[str]) -> int:
    """Write what a probe finds, or the error that it raises, to the file ANSWER."""
    answer, limit, name, *arguments = argv
    # The doctor waits no longer than that; should it have been killed, this ends all the same.
    signal.alarm(int(float(limit)) + 5)
    try:
        for facts in PROBES[name](*arguments):
            _write(Path(answer), facts)
    except Exception as error:
        traceback.print_exc()
        # Of several processes the first to fail knows why; the others have only lost a peer.
        if not Path(answer).exists():
            reason = str(error).strip().partition("\n")[0]
            _write(Path(answer), {"error": f"{type(error).__name__}: {reason}"})
        return 1
    return 0


def torch_() -> Iterator[Facts]:
    """Version and build of torch, and each GPU once a sum has been computed on it."""
    import torch

    facts: Facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": []}
    yield facts
    if torch.version.cuda is None:
        return
    try:
        torch.cuda.init()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            facts["gpus"].append(f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
            torch.ones(2, device=f"cuda:{i}").sum().item()
    except Exception as error:  # of many types, and all mean the same
        facts["problem"] = str(error).strip().partition("\n")[0]
    yield facts


def torchvision() -> Iterator[Facts]:
    """The version of torchvision, and whether lsgd.vision stood in for its compiled operators."""
    from lsgd import vision

    yield {"version": version("torchvision"), "stood_in": hasattr(vision, "_operators")}


def tensorboard() -> Iterator[Facts]:
    """The version of tensorboard, once the part of it that torch writes with could be imported."""
    import_module("tensorboard.summary.writer.event_file_writer")
    yield {"version": version("tensorboard")}


def setuptools() -> Iterator[Facts]:
    """The version of setuptools, from which alone Python 3.12 has the distutils of horovodrun."""
    import_module("setuptools")  # first, since it brings the second
    import_module("distutils")
    yield {"version": version("setuptools")}


def horovod() -> Iterator[Facts]:
    """The version of the installed Horovod, and the parts it is built with."""
    if find_spec("horovod") is None:
        yield {"version": None}
        return
    from lsgd.comm.horovod import built

    yield {"version": version("horovod"), "built": built()}


def apex() -> Iterator[Facts]:
    """The version of NVIDIA's apex, once it has made an update where a run would make it."""
    if find_spec("apex") is None:
        yield {"version": None}
        return
    import torch

    from lsgd.job.device import pick_device
    from lsgd.rules.apex import apex_sgd

    group = {"params": [torch.ones(2, device=pick_device("auto"))], "weight_decay": 0.0}
    apex_sgd([group], momentum=0.9, nesterov=True)
    yield {"version": version("apex")}


def compiler() -> Iterator[Facts]:
    """Why torch.compile makes no kernels for the GPU, or nothing."""
    from lsgd.job.device import pick_device
    from lsgd.rules.batchnorm import no_compiler

    yield {"why": no_compiler(pick_device("auto"))}


def dali(device: str) -> Iterator[Facts]:
    """Whether DALI decodes a JPEG, as PIL does, on the CPU or on the first GPU."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        yield {"version": None}
        return
    import numpy as np
    from PIL import Image

    from lsgd.inputs import dali

    across = np.linspace(0, 255, 64).astype(np.uint8)
    image = np.stack((*np.meshgrid(across, across[:48]), np.full((48, 64), 99, np.uint8)), -1)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=90)
    by_pil = np.asarray(Image.open(file), int)
    by_dali = dali.decoded(file.getvalue(), gpu=0 if device == "cuda" else None)
    if by_dali.shape != by_pil.shape or abs(by_dali - by_pil).mean() > 2:
        raise RuntimeError("a JPEG did not come out as PIL decodes it")
    yield {"version": import_module("nvidia.dali").__version__}


def recipes() -> Iterator[Facts]:
    """The number of recipes, once one is composed and checked."""
    from lsgd import config

    config.load_recipe(["+recipe=digits"])
    yield {"recipes": len(config.recipes())}


def data() -> Iterator[Facts]:
    """Every dataset of conf/data: where it is looked for, and what is wrong with it."""
    from lsgd import config

    facts: Facts = {"datasets": []}
    options = {path.stem for path in (paths.conf_dir() / "data").glob("*.yaml")}
    for option in sorted(options - {"folder"}):  # which lies where the words of a run say
        facts["datasets"].append(_dataset(config.load_data(option)))
        # Should a reader crash on the next one, this much is known.
        yield facts


def _dataset(data: "Data") -> Facts:
    from lsgd.inputs.index import prepare_command
    from lsgd.recipe import THINGS

    root = paths.data_root(data.name)
    facts: Facts = {"name": data.name, "root": str(root), "problem": None}
    facts["prepare"] = prepare_command(data.name, root)
    facts["bundled"] = data.name == "digits"
    # In a checkout the folder is there from the start, with how to fill it.
    facts["there"] = root.is_dir() and bool(set(os.listdir(root)) - {"README.md", "prepare.py"})
    if facts["there"] or facts["bundled"]:
        try:
            _open(data, root)
        except Refused as refused:
            facts["problem"] = str(refused)
    count = data.train_examples + data.val_examples + data.test_examples
    return facts | {"holds": f"{count:,} {THINGS[data.workload]}"}


def _open(data: "Data", root: Path) -> None:
    """Read a dataset; raises Refused if it is not what its configuration says."""
    from lsgd.inputs import IN_MEMORY
    from lsgd.inputs.arrays import load_arrays
    from lsgd.inputs.index import open_indexes
    from lsgd.text.conll import open_tagged
    from lsgd.text.ptb import open_texts
    from lsgd.text.sst import open_trees

    match data.workload:
        case "language":
            open_texts(data)
        case "tagging":
            open_tagged(data)
        case "trees":
            open_trees(data)
        case "images":
            (load_arrays if data.name in IN_MEMORY else open_indexes)(data, root)


def network() -> Iterator[Facts]:
    """The name of this machine and the addresses that it resolves to, if any."""
    host = socket.gethostname()
    try:
        records = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        records = []
    yield {"host": host, "addresses": list(dict.fromkeys(str(record[4][0]) for record in records))}


def all_reduce(library: str, device_kind: str) -> Iterator[Facts]:
    """A sum over the processes of a launcher: whether it is right on all, and how fast."""
    import torch

    from lsgd.comm import joined, sum_
    from lsgd.job.device import pick_device
    from lsgd.recipe import CommSettings

    device = pick_device(device_kind)
    with joined(CommSettings(library=library, timeout=30), device) as comm:
        pattern = torch.arange(SUMMED_MB * 10**6 // 4, device=device).remainder(1000).float()
        tensor = pattern * (comm.rank + 1)
        sum_(comm, tensor)
        # Whole numbers below 2^24: exact in any order.
        right = torch.equal(tensor, pattern * (comm.world_size * (comm.world_size + 1) // 2))
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            sum_(comm, tensor.zero_())
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        facts: Facts = {"over": comm.library, "processes": comm.world_size}
        facts["wrong"] = [
            rank for rank, agrees in enumerate(comm.gather_objects(right)) if not agrees
        ]
        facts["mb_per_s"] = SUMMED_MB / min(seconds)
    if comm.rank == 0:
        yield facts


PROBES: dict[str, Callable[..., Iterator[Facts]]] = {
    "torch": torch_,
    "torchvision": torchvision,
    "tensorboard": tensorboard,
    "setuptools": setuptools,
    "horovod": horovod,
    "apex": apex,
    "compiler": compiler,
    "dali": dali,
    "recipes": recipes,
    "data": data,
    "network": network,
    "all_reduce": all_reduce,
}


def _write(path: Path, facts: Facts) -> None:
    # In one move: whatever happens, the doctor reads a whole answer or none.
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(facts))
    os.replace(partial, path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
