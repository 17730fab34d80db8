"""Python's search for garbage, before and after a command's imports are over."""

import subprocess
import sys

import pytest

COMMAND = """
import sys
sys.argv[0] = {first!r}
sys.orig_argv[-1] = "lsgd.none"
import gc
frozen = gc.get_freeze_count()  # Python 3.12 itself freezes some objects
import lsgd
found = [gc.isenabled()]
from lsgd.job.command import run_alone, run_command
for run in (run_alone, run_command):
    run(lambda: found.append(gc.isenabled()))
found.append(gc.get_freeze_count() > frozen)
print(*found)
"""


@pytest.mark.parametrize(
    ("first", "found"), [("-m", "False True True True"), ("a_program", "True True True False")]
)
def test_it_is_put_off_until_a_command_begins(first: str, found: str) -> None:
    """Not where lsgd is imported by another program, whose garbage is its own."""
    program = COMMAND.format(first=first)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert (done.stdout, done.stderr) == (f"{found}\n", "")
