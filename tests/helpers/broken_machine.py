"""How tests of the doctor break things: in the environment of a process, not on the machine."""

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

BLOCKER = """
import os, time
from importlib.machinery import PathFinder

blocked = os.environ.get("TEST_BLOCKED", "").split(",")
really = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in blocked else really(name, *rest)
if "RANK" in os.environ and os.environ["RANK"] == os.environ.get("TEST_SLEEPING_RANK"):
    time.sleep(600)
"""


def broken(folder: Path, **modules: str) -> dict[str, str]:
    """An environment in which these modules are these programs, and TEST_BLOCKED names others that
    are not there; TEST_SLEEPING_RANK is a process that never starts. TEST_OWN marks its processes.
    """
    (folder / "sitecustomize.py").write_text(BLOCKER)
    for name, program in modules.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(program)
    return {"PYTHONPATH": f"{folder}:{ROOT}", "TEST_OWN": uuid.uuid4().hex}


def left_running(environment: dict[str, str]) -> list[str]:
    """Command lines of the processes that have the mark of this environment."""
    mark = f"TEST_OWN={environment['TEST_OWN']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def doctor(
    cwd: Path, *options: str, environment: dict[str, str], before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """The command, after the words of another one that starts it."""
    return subprocess.run(
        [*before, sys.executable, "-m", "lsgd.doctor", *options],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
