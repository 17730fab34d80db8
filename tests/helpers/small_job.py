"""A fake multi-process job without torch, which starts fast.

    python small_job.py run_dir=FOLDER np=N PLAN …

Each start executes the next action of the plan: process 1 ends in that way, and the others wait for
it. As with torchrun, the launcher then kills the others and exits with code 1, whatever the cause.
An action with the prefix `save-` first writes a new checkpoint.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lsgd.job.members import exit_report


def member(rank: int, word: str) -> int:
    # A test may send SIGTERM as soon as it sees the process, before the handler is set.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with exit_report(rank) as leave:
        if word == "saves-when-asked":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(leave(75, "saved")))
        if word == "stubborn" and rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if rank != 1 or word in ("hangs", "saves-when-asked", "stubborn"):
            time.sleep(1000)
        elif word == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "segfault":
            ctypes.string_at(0)
        elif word == "raises":
            raise RuntimeError("out of luck")
        return leave(int(word), "so it was planned")


def launcher(folder: Path, processes: int, plan: list[str]) -> int:
    with (folder / "starts").open("a") as file:
        file.write(f"{processes}\n")
    word = plan[len((folder / "starts").read_text().splitlines()) - 1]
    if word.startswith("save-"):
        word = word.removeprefix("save-")
        (folder / "beside").write_text("new")
        os.replace(folder / "beside", folder / "checkpoint.pt")
    waits = word.startswith("alone-")
    word = word.removeprefix("alone-")
    if word == "launcher-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "2-early":
        return 2
    members = [
        subprocess.Popen([sys.executable, __file__, "member", str(rank), word])
        for rank in range(processes)
    ]
    code = members[1].wait()
    if waits:
        time.sleep(1000)
    for each in members:
        each.kill()
    if code == 0:
        (folder / "metrics.jsonl").touch()
    return int(code != 0)


if __name__ == "__main__":
    if sys.argv[1] == "member":
        raise SystemExit(member(int(sys.argv[2]), sys.argv[3]))
    run_dir, number, *words = sys.argv[1:]
    raise SystemExit(
        launcher(Path(run_dir.partition("=")[2]), int(number.partition("=")[2]), words)
    )
