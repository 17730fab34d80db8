"""How many processes the options of a launcher ask for, and what each of them is given."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from lsgd.errors import Refused
from lsgd.launch.options import LAUNCHERS, Request

GPUS = 8
"""Of a machine in a cluster, unless the options say otherwise."""


def python() -> str:
    """The Python that trains outside of images: that of $PYTHON, else the one that runs this."""
    return os.environ.get("PYTHON") or sys.executable


def find_python() -> str:
    """The Python that trains on this machine; raises Refused if it is not there."""
    name = python()
    if shutil.which(name) is None:
        raise Refused(f"there is no Python at {name}; set PYTHON to one that is there, or unset it")
    return name


def gpus_per_machine(launcher: str, options: Mapping[str, str]) -> int | None:
    """The GPUs of each machine, where processes are counted by these; None where in all."""
    if "--gpus" in options or ("--np" not in options and LAUNCHERS[launcher].submits):
        return int(options.get("--gpus", GPUS))
    return None


def count_processes(launcher: str, options: Mapping[str, str]) -> int:
    """All the processes that the options ask for; by default as many as suit this machine."""
    if gpus := gpus_per_machine(launcher, options):
        return int(options.get("--nodes", 1)) * gpus
    if "--np" in options:
        return int(options["--np"])
    return sum(_slots(options)) or default_processes(find_python())


@cache
def default_processes(program: str) -> int:
    """One process per GPU that this Python's torch finds, or 2 without GPUs."""
    question = "import torch; print(torch.cuda.device_count() or 2)"
    answer = subprocess.run([program, "-c", question], capture_output=True, text=True).stdout
    return int(answer or 2)


def threads(request: Request, processes: int) -> str:
    """OMP_NUM_THREADS=N such that the processes of a machine share its cores.

    Each would otherwise start as many threads as there are cores. What the caller has set stays.
    """
    if own := os.environ.get("OMP_NUM_THREADS"):
        return f"OMP_NUM_THREADS={own}"
    slots = _slots(request.options)
    local_size = slots[0] if slots else int(request.options.get("--gpus", processes))
    return f"OMP_NUM_THREADS={max(1, os.sysconf('SC_NPROCESSORS_ONLN') // local_size)}"


def _slots(options: Mapping[str, str]) -> list[int]:
    """The processes on each of --hosts, in its order."""
    hosts = options.get("--hosts", "")
    return [int(host.rpartition(":")[2]) for host in hosts.split(",") if host]
