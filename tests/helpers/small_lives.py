"""A process of a job without torch, as one of many: python small_lives.py run_dir=FOLDER PLAN …

It leaves the file FOLDER/RANK.LIFE when it begins, with its pid and its parent's. In the plan
`RANK.LIFE=ACTION` says what becomes of it, and `until=NAME` when the others end: once that file is
there. One that begins with `seen-` waits until the supervisor has written its return down. With
`all=saves`, the last word, they end with exit code 75 when they are asked to.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lsgd.errors import EndsEarly, Preempted
from lsgd.job.command import run_command
from lsgd.job.launcher import detect


def work(folder: Path, plan: list[str]) -> None:
    launch = detect()
    name = f"{launch.rank}.{launch.life}"
    actions = dict(word.split("=") for word in plan)
    action = actions.get(name, "")
    if "saves" in plan[-1]:
        signal.signal(signal.SIGTERM, save)
    child, supervised = folder / "child", folder / "supervise.log"
    if launch.rank == 1 and launch.life and child.exists():
        with suppress(FileNotFoundError):
            # What is dead, and has not been reaped, has an empty one.
            assert not Path("/proc", child.read_text(), "cmdline").read_bytes()
    if action.startswith("child-"):
        started = subprocess.Popen(["sleep", "100"], start_new_session=True)
        child.write_text(str(started.pid))
    (folder / f"{name}.tmp").write_text(f"{os.getpid()} {os.getppid()}")
    os.replace(folder / f"{name}.tmp", folder / name)
    while action.startswith("seen-") and str(os.getpid()) not in supervised.read_text():
        time.sleep(0.01)
    if action.endswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if action.endswith("raises"):
        raise RuntimeError("out of luck")
    if action.isdecimal():
        codes = {kind.exit_code: kind for kind in EndsEarly.__subclasses__()}
        raise codes[int(action)]("so it was planned")
    while not (folder / actions["until"]).exists():
        time.sleep(0.01)


def save(*_: object) -> None:
    raise Preempted("saved")


if __name__ == "__main__":
    run_dir, *plan = sys.argv[1:]
    folder = Path(run_dir.partition("=")[2])
    raise SystemExit(run_command(lambda: work(folder, plan)))
