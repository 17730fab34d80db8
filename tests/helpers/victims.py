"""The processes of a job by their role, for tests that kill one of them."""

from collections.abc import Iterable
from pathlib import Path

import psutil

from lsgd.job.launcher import detect_launch

PROGRAMS = {"lsgd.train", "sparse.py"}
"""The programs whose names identify a training process by its command line."""
LAUNCHERS = {"torch.distributed.run", "horovod.runner.launch", "mpirun"}


def ranks(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """Return the training processes among these by rank, without those that have just exited."""
    trainers = {}
    for process in processes:
        try:
            if PROGRAMS & {Path(word).name for word in process.cmdline()}:
                launch = detect_launch(process.environ())
                if launch.launcher != "none":
                    trainers[launch.rank] = process
        except psutil.Error:
            continue
    return trainers


def processes_by_role(pids: Iterable[int], part: str) -> list[psutil.Process]:
    """Return the processes with a role in the job: `launcher`, `rank N` or `decoder`.

    Children of a launcher with the same command line, which only wait for its end, are left out.
    """
    lines = {}
    for pid in sorted(pids):
        try:
            process = psutil.Process(pid)
            lines[process] = process.cmdline()
        except psutil.Error:
            continue
    if part == "launcher":
        launchers = [
            process
            for process, line in lines.items()
            if LAUNCHERS & set(line) and "lsgd.supervise" not in line
        ]
        return sorted(launchers, key=psutil.Process.create_time)[:1]
    if part == "decoder":
        return [process for process, line in lines.items() if "lsgd.inputs.decoder" in line]
    return [process for rank, process in ranks(lines).items() if part == f"rank {rank}"]
