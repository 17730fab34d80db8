"""The processes of a job by the part that they have in it, for tests that kill one of them."""

from collections.abc import Iterable

import psutil

from lsgd.job.launcher import detect

LAUNCHERS = {"torch.distributed.run", "horovod.runner.launch", "mpirun"}


def ranks(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """The training processes among these by their rank; without those that have just ended."""
    trainers = {}
    for process in processes:
        try:
            if "lsgd.train" in process.cmdline():
                launch = detect(process.environ())
                if launch.launcher != "none":
                    trainers[launch.rank] = process
        except psutil.Error:
            continue
    return trainers


def victims(pids: Iterable[int], part: str) -> list[psutil.Process]:
    """Those of a job's processes that are its `launcher`, its `rank N` or a `decoder`.

    Those of a launcher's own children that only wait for its end are not among them.
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
