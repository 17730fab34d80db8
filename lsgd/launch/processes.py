"""The number of processes that a launcher's options ask for, and their threads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from lsgd.errors import UsageError
from lsgd.job.launcher import Launch, cores, omp_num_threads
from lsgd.launch.options import LAUNCHERS, Request
from lsgd.paths import local_path

GPUS = 8
"""The GPUs of a machine in a cluster, unless the options give another number."""


def python() -> str:
    """Return the Python interpreter that trains outside of containers: $PYTHON, or this one."""
    return local_path(os.environ.get("PYTHON") or sys.executable)


def find_python() -> str:
    """Return the Python interpreter that trains here; raise UsageError if it does not exist."""
    name = python()
    if shutil.which(name) is None:
        raise UsageError(
            f"there is no Python at {name}; set PYTHON to an existing one, or unset it"
        )
    return name


def gpus_per_machine(launcher: str, options: Mapping[str, str]) -> int | None:
    """Return the GPUs per machine where these set the number of processes, else None."""
    if "--gpus" in options or ("--np" not in options and LAUNCHERS[launcher].submits):
        return int(options.get("--gpus", GPUS))
    return None


def count_processes(launcher: str, options: Mapping[str, str]) -> int:
    """Return the total number of processes that the options ask for, or this machine's default.

    Raises UsageError for more than the processes of --hosts under Horovod, which ends in a
    traceback. Open MPI refuses them in a sentence, or its settings allow them.
    """
    if gpus := gpus_per_machine(launcher, options):
        return int(options.get("--nodes", 1)) * gpus
    slots = sum(_slots(options))
    if "--np" not in options:
        return slots or default_processes(find_python())
    processes = int(options["--np"])
    if launcher == "horovodrun" and slots and processes > slots:
        raise UsageError(
            f"--np {processes} must not be above {slots}, the processes of --hosts "
            f"{options['--hosts']}; leave out --np, or write more in --hosts"
        )
    return processes


@cache
def default_processes(program: str) -> int:
    """Return the default number of processes: one per GPU that torch finds, or 2 without GPUs."""
    question = "import torch; print(torch.accelerator.device_count() or 2)"
    answer = subprocess.run([program, "-c", question], capture_output=True, text=True).stdout
    return int(answer or 2)


def with_threads(request: Request, processes: int, command: list[str]) -> list[str]:
    """Wrap the command in `env` with an OMP_NUM_THREADS that shares a machine's cores."""
    # To env, a program with an equals sign in its path is a variable.
    shell = ["sh", "-c", 'exec "$0" "$@"'] if "=" in command[0] else []
    return ["env", omp_setting(request, processes), *shell, *command]


def omp_setting(request: Request, processes: int) -> str:
    """Return the setting OMP_NUM_THREADS=N that divides a machine's cores among its processes.

    Otherwise each process would start as many threads as there are cores. A value that the caller
    has set is kept. They are the cores that this job may use here, but with --hosts all, since the
    bindings and quotas of other machines are unknown.
    """
    if omp_num_threads():
        return f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"
    slots = _slots(request.options)
    local_size = slots[0] if slots else int(request.options.get("--gpus", processes))
    machine = (os.cpu_count() or 1) if slots else usable_cores_here()
    return f"OMP_NUM_THREADS={max(1, machine // local_size)}"


def usable_cores_here() -> int:
    """Return the number of CPU cores that a job which is started from here may use on a machine."""
    return cores(Launch("none"))


def _slots(options: Mapping[str, str]) -> list[int]:
    """Return the number of processes on each host of the --hosts option, in its order."""
    hosts = options.get("--hosts", "")
    return [int(host.rpartition(":")[2]) for host in hosts.split(",") if host]
