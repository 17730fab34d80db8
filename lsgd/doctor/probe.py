"""The doctor's probes: `python -m lsgd.doctor.probe ANSWER LIMIT PROBE …`, a process for each.

Each probe imports the library that it is about and yields facts for JSON, each time all that it has
found so far, so that a later crash does not lose the earlier facts.
"""

import io
import json
import os
import signal
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
from lsgd.errors import UsageError
from lsgd.installation import is_installed

if TYPE_CHECKING:
    from torch import Tensor, device

    from lsgd.recipe import Data

Facts = dict[str, Any]

SUMMED_MB = 16
"""The megabytes of one all-reduce; about the size of a gradient bucket."""


def main(argv: Sequence[str]) -> int:
    """Run a probe of this machine and write its facts, or the error it raises, to a JSON file."""
    answer, limit, name, *arguments = argv
    # The doctor waits no longer than this; the alarm ends this process if the doctor is killed.
    signal.alarm(int(float(limit)) + 5)
    try:
        for facts in PROBES[name](*arguments):
            _write(Path(answer), facts)
    except Exception as error:
        traceback.print_exc()
        # Of several processes, the first failure is the cause; the others have only lost a peer.
        if not Path(answer).exists():
            reason = str(error).strip().partition("\n")[0]
            _write(Path(answer), {"error": f"{type(error).__name__}: {reason}"})
        return 1
    return 0


def torch_() -> Iterator[Facts]:
    """Yield torch's version and CUDA build, and the GPUs up to the first that cannot compute."""
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
    except Exception as error:  # many types, all of which mean an unusable GPU
        facts["problem"] = str(error).strip().partition("\n")[0]
    yield facts


def torchvision() -> Iterator[Facts]:
    """Yield the version of torchvision, and whether lsgd.vision replaced its compiled operators."""
    from lsgd import vision

    yield {"version": version("torchvision"), "stood_in": hasattr(vision, "_operators")}


def tensorboard() -> Iterator[Facts]:
    """Yield the version of tensorboard, after importing its writer of event files."""
    import_module("tensorboard.summary.writer.event_file_writer")
    yield {"version": version("tensorboard")}


def setuptools() -> Iterator[Facts]:
    """Yield the version of setuptools, after importing it and distutils, which horovodrun needs."""
    import_module("setuptools")  # first, since it brings the second
    import_module("distutils")
    yield {"version": version("setuptools")}


def horovod() -> Iterator[Facts]:
    """Yield the version of Horovod and what it is built with, or no version if not installed."""
    if not is_installed("horovod"):
        yield {"version": None}
        return
    from lsgd.comm.horovod import built_parts

    yield {"version": version("horovod"), "built": built_parts()}


def apex() -> Iterator[Facts]:
    """Yield the version of NVIDIA's apex, after an update on the device a run would use."""
    if not is_installed("apex"):
        yield {"version": None}
        return
    import torch

    from lsgd.job.device import pick_device
    from lsgd.rules.optimizers.apex import apex_sgd

    group = {"params": [torch.ones(2, device=pick_device("auto"))], "weight_decay": 0.0}
    apex_sgd([group], momentum=0.9, nesterov=True)
    yield {"version": version("apex")}


def compiler() -> Iterator[Facts]:
    """Yield why torch.compile makes no kernels for the GPU, or an empty reason if it does."""
    from lsgd.job.device import pick_device
    from lsgd.rules.batchnorm import compiler_problem

    yield {"why": compiler_problem(pick_device("auto"))}


def dali(device: str) -> Iterator[Facts]:
    """Yield the version of DALI, after checking that it decodes a JPEG like PIL on this device."""
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
    by_dali = next(dali.decode_each([file.getvalue()], gpu=0 if device == "cuda" else None))
    if by_dali.shape != by_pil.shape or abs(by_dali - by_pil).mean() > 2:
        raise RuntimeError("a JPEG decodes differently than with PIL")
    yield {"version": import_module("nvidia.dali").__version__}


def recipes() -> Iterator[Facts]:
    """Yield the number of lsgd's recipes, after composing and checking one."""
    from lsgd import config

    config.load_recipe(["recipe=digits"])
    yield {"recipes": len(config.sorted_recipe_names())}


def data() -> Iterator[Facts]:
    """Yield facts on every dataset of conf/data: where it is expected and what is wrong with it."""
    from lsgd import config

    facts: Facts = {"datasets": []}
    options = paths.yaml_names(paths.conf_dir() / "data")
    options.remove("folder")  # whose path only the overrides of a run give
    for option in options:
        try:
            facts["datasets"].append(_dataset(config.load_data(option)))
        except UsageError as refused:
            facts["datasets"].append(_unknown(option, str(refused)))
        # If a reader crashes on the next one, the facts so far are kept.
        yield facts


def _unknown(option: str, problem: str) -> Facts:
    """Return the facts about a file of conf/data that cannot be read as a dataset."""
    file = paths.display_path(paths.conf_dir() / "data" / f"{option}.yaml")
    facts: Facts = {"name": option, "root": "", "problem": problem, "holds": ""}
    return facts | {"prepare": f"fix or remove {file}", "bundled": False, "there": False}


def _dataset(data: "Data") -> Facts:
    from lsgd.inputs.index import prepare_command
    from lsgd.recipe.wording import UNITS

    root = paths.data_root(data.name)
    facts: Facts = {"name": data.name, "root": str(root), "problem": None}
    facts["prepare"] = prepare_command(data.name, root)
    facts["bundled"] = data.name == "digits"
    # In a checkout the folder exists from the start, with instructions for filling it.
    names = set(os.listdir(root)) if root.is_dir() else set()
    facts["there"] = not all(map(paths.is_leftover, names - {"README.md", "prepare.py"}))
    if facts["there"] or facts["bundled"]:
        try:
            _open(data, root)
        except UsageError as refused:
            facts["problem"] = str(refused)
    count = data.train_examples + data.val_examples + data.test_examples
    return facts | {"holds": f"{count:,} {UNITS[data.workload].dataset}"}


def _open(data: "Data", root: Path) -> None:
    """Open the files of a dataset; raise UsageError if they do not match its configuration."""
    from lsgd.inputs.arrays import IN_MEMORY_DATASETS, load_arrays
    from lsgd.inputs.index import open_indexes
    from lsgd.text.conll import open_tagged_corpus
    from lsgd.text.ptb import open_texts
    from lsgd.text.sst import open_tree_corpus

    match data.workload:
        case "language":
            open_texts(data)
        case "tagging":
            open_tagged_corpus(data)
        case "trees":
            open_tree_corpus(data)
        case "images":
            (load_arrays if data.name in IN_MEMORY_DATASETS else open_indexes)(data, root)


def memory() -> Iterator[Facts]:
    """Yield the memory of the GPUs or this machine, and how many virtual workers of bs256 fit."""
    import torch

    from lsgd import config
    from lsgd.autotune import MAX_MEMORY_SHARE
    from lsgd.job.system import memory_limit
    from lsgd.profile.memory import max_workers_per_micro_batch

    where, size = "RAM", memory_limit()
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        where, size = "each GPU", min(gpu.total_memory for gpu in gpus)
    facts: Facts = {"where": where, "gb": size / 1e9, "workers": {}}
    for precision in ("float32", "bfloat16"):
        recipe = config.load_recipe(["recipe=bs256", f"precision={precision}"])
        facts["workers"][precision] = max_workers_per_micro_batch(recipe, MAX_MEMORY_SHARE * size)
        yield facts


def network() -> Iterator[Facts]:
    """Yield the name of this machine and the addresses that it resolves to, if any."""
    from lsgd.job.network import hostname

    host = hostname()
    yield {"host": host.name, "addresses": host.addresses}


def all_reduce(library: str, device_kind: str) -> Iterator[Facts]:
    """Time an all-reduce over a launcher's processes; yield its speed and ranks with wrong sums."""
    from lsgd.comm import all_reduce_, joined
    from lsgd.job.device import pick_device
    from lsgd.recipe import CommSettings

    device = pick_device(device_kind)
    with joined(CommSettings(library=library, timeout=30), device) as comm:
        speed, right = time_all_reduce(
            lambda tensor: all_reduce_(comm, tensor), comm.rank, comm.world_size, device
        )
        facts: Facts = {"over": comm.library, "processes": comm.world_size}
        facts["wrong"] = [
            rank for rank, agrees in enumerate(comm.gather_objects(right)) if not agrees
        ]
        facts["mb_per_s"] = speed
    if comm.rank == 0:
        yield facts


def time_all_reduce(
    all_reduce_: "Callable[[Tensor], object]", rank: int, size: int, device: "device"
) -> tuple[float, bool]:
    """Time an in-place all-reduce of `size` processes; return its MB/s and if the sum is right.

    The speed is that of the best of five, after one that is not counted.
    """
    import torch

    from lsgd.job.device import synchronize

    pattern = torch.arange(SUMMED_MB * 10**6 // 4, device=device).remainder(1000).float()
    tensor = pattern * (rank + 1)
    all_reduce_(tensor)
    # Small integers: their float32 sums, below 2^24, are exact in any order.
    right = torch.equal(tensor, pattern * (size * (size + 1) // 2))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        all_reduce_(tensor.zero_())
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return SUMMED_MB / min(seconds), right


PROBES: dict[str, Callable[..., Iterator[Facts]]] = {
    probe.__name__.rstrip("_"): probe
    for probe in (
        torch_, torchvision, tensorboard, setuptools, horovod, apex, compiler, dali, recipes, data,
        memory, network, all_reduce,
    )
}  # fmt: skip


def _write(path: Path, facts: Facts) -> None:
    # By an atomic rename, so that the doctor reads a complete answer or none.
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(facts))
    os.replace(partial, path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
