"""Fake machine faults for tests of lsgd.doctor, made in the environment of one process."""

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from helpers.launching import WITHOUT_COMPILER

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


def broken_environment(folder: Path, **modules: str) -> dict[str, str]:
    """Return environment variables that replace modules with these sources, for a subprocess.

    There TEST_BLOCKED lists modules that cannot be imported, and the process of rank
    TEST_SLEEPING_RANK never starts. TEST_OWN marks the processes. None of them compiles.
    """
    without_compiler = Path(WITHOUT_COMPILER, "sitecustomize.py").read_text()
    (folder / "sitecustomize.py").write_text(f"{BLOCKER}\n{without_compiler}")
    for name, program in modules.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(program)
    return {"PYTHONPATH": f"{folder}:{ROOT}", "TEST_OWN": uuid.uuid4().hex}


def remaining_processes(environment: dict[str, str]) -> list[str]:
    """Return the command lines of running processes that have this environment's mark."""
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
    """Run lsgd.doctor with options; `before` is a command that starts it, such as mpirun."""
    return subprocess.run(
        [*before, sys.executable, "-m", "lsgd.doctor", *options],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
