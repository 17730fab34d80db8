"""The machine that the figures of a folder are of: one for all of them.

`python -m benchmarks.gpu.machine DEVICE` prints what torch finds, as JSON. It is a process of its
own, since one that has asked for a GPU keeps memory of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.job.children import failure, finished

FILE = "machine.json"
LIMIT = 300.0
"""Seconds in which torch is imported, also from a slow disk, and the driver answers."""

Machine = dict[str, Any]
"""`device`, `gpu` (its name, or None), `torch` (its version), and `lines` for people."""


def find_machine(device: str) -> Machine:
    """The machine of this process; raises Refused without the device."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", device]
    code, text = finished(command, limit=LIMIT)
    if code != 0:
        raise Refused(f"torch cannot be asked for the machine: {failure(code, text, LIMIT)}")
    found: Machine = json.loads(text.splitlines()[-1])
    if device == "cuda" and found["gpu"] is None:
        raise Refused(
            f"torch {found['torch']} finds no GPU here, and this measures one; run it where there "
            "is one, or write --tiny to try it in small on a CPU"
        )
    return found


def keep_machine(folder: Path, found: Machine) -> None:
    """Note whose figures are in the folder; raises Refused if they are another machine's."""
    file = folder / FILE
    if not file.exists():
        with whole(file) as out:
            out.write(json.dumps(found, indent=1).encode() + b"\n")
    kept = read_machine(folder)
    for key in ("device", "gpu", "torch"):
        if kept[key] != found[key]:
            raise Refused(
                f"--out {folder} has figures of {key} {kept[key]}, and here it is {found[key]}; "
                "write another folder"
            )


def read_machine(folder: Path) -> Machine:
    """The machine whose figures are in the folder."""
    kept: Machine = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return kept


def main(device: str) -> None:
    """Print the machine as JSON."""
    import torch

    from lsgd.bench.setting import machine_lines, setting
    from lsgd.doctor.machine import nvidia

    usable = device == "cpu" or torch.cuda.is_available()
    here = setting(torch.device(device if usable else "cpu"), "timm")
    gpu = here["machine"]["gpu"]
    lines = machine_lines(here)
    if gpu:
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        lines.append(f"driver {nvidia(LIMIT) or 'of unknown version'}, {memory:.0f} GiB on the GPU")
    print(json.dumps({"device": device, "gpu": gpu, "torch": torch.__version__, "lines": lines}))


if __name__ == "__main__":
    main(*sys.argv[1:])
