"""A fake process of a job without torch, whose restarts are planned.

    python small_lives.py run_dir=FOLDER PLAN …

At its start it writes the file FOLDER/RANK.LIFE with its pid and its parent's; LIFE counts its
restarts. The plan has its ACTION as `RANK.LIFE=ACTION`; processes without an action exit once the
file NAME of `until=NAME` exists. An action with the prefix `seen-` waits until the supervisor has
logged the restart. With `all=saves` at the end of the plan, processes exit with code 75 on SIGTERM.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lsgd.errors import ExitError, PreemptedError
from lsgd.job.command import run_command
from lsgd.job.launcher import detect_launch


def work(folder: Path, plan: list[str]) -> None:
    launch = detect_launch()
    name = f"{launch.rank}.{launch.restart_count}"
    actions = dict(word.split("=") for word in plan)
    action = actions.get(name, "")
    if "saves" in plan[-1]:
        signal.signal(signal.SIGTERM, save)
    child, supervised = folder / "child", folder / "supervise.log"
    if launch.rank == 1 and launch.restart_count and child.exists():
        with suppress(FileNotFoundError):
            # A zombie has an empty command line.
            assert not Path("/proc", child.read_text(), "cmdline").read_bytes()
    if action.startswith("child-"):
        started = subprocess.Popen(["sleep", "100"], start_new_session=True)
        # In the middle of its exec the kernel does not say yet which variables it has.
        while not Path("/proc", str(started.pid), "environ").read_bytes():
            time.sleep(0.01)
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
        codes = {kind.exit_code: kind for kind in ExitError.__subclasses__()}
        raise codes[int(action)]("so it was planned")
    while not (folder / actions["until"]).exists():
        time.sleep(0.01)
    if launch.rank == 0:
        (folder / "metrics.jsonl").touch()  # as a finished training run has


def save(*_: object) -> None:
    raise PreemptedError("saved")


if __name__ == "__main__":
    run_dir, *plan = sys.argv[1:]
    folder = Path(run_dir.partition("=")[2])
    raise SystemExit(run_command(lambda: work(folder, plan)))
