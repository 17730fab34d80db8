"""The machine on which all results of a folder were measured.

`python -m benchmarks.gpu.machine DEVICE` prints torch's description of it as JSON. It is a separate
process, since one that has initialized CUDA keeps memory of the GPU.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.job.children import describe_failure, run_with_limit

FILE = "machine.json"
LIMIT = 300.0
"""The time limit in seconds of importing torch, even from a slow disk, and asking the driver."""

Machine = dict[str, Any]
"""`device`, `gpu` (its name, or None), `torch` (its version), and `lines` for the report."""


def find_machine(device: str) -> Machine:
    """Return the description of this machine; raise UsageError if it lacks the device."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", device]
    code, text = run_with_limit(command, limit=LIMIT)
    if code != 0:
        raise UsageError(
            f"torch cannot be asked for the machine: {describe_failure(code, text, LIMIT)}"
        )
    found: Machine = json.loads(text.splitlines()[-1])
    if device == "cuda" and found["gpu"] is None:
        raise UsageError(
            f"torch {found['torch']} finds no GPU here, and this measures one; run it where there "
            "is one, or write --tiny to try it in small on a CPU"
        )
    return found


def keep_machine(folder: Path, found: Machine) -> None:
    """Save the machine in the folder; raise UsageError if its results are another machine's."""
    file = folder / FILE
    if not file.exists():
        with atomic_write(file) as out:
            out.write(json.dumps(found, indent=1).encode() + b"\n")
    kept = read_machine(folder)
    for key in ("device", "gpu", "torch"):
        if kept[key] != found[key]:
            raise UsageError(
                f"--out {folder} has figures of {key} {kept[key]}, and here it is {found[key]}; "
                "write another folder"
            )


def read_machine(folder: Path) -> Machine:
    """Return the machine whose results are in the folder."""
    kept: Machine = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return kept


def main(device: str) -> None:
    """Print the machine's description as JSON."""
    import torch

    from lsgd.bench.setting import environment_facts, machine_lines
    from lsgd.doctor.machine import nvidia

    usable = device == "cpu" or torch.cuda.is_available()
    here = environment_facts(torch.device(device if usable else "cpu"), "timm")
    gpu = here["machine"]["gpu"]
    lines = machine_lines(here)
    if gpu:
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        lines.append(f"driver {nvidia(LIMIT) or 'of unknown version'}, {memory:.0f} GiB on the GPU")
    print(json.dumps({"device": device, "gpu": gpu, "torch": torch.__version__, "lines": lines}))


if __name__ == "__main__":
    main(*sys.argv[1:])
