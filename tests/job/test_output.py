"""A reader that leaves, as `| head` does, a disk that is full, and what a terminal would obey."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lsgd.job.output import guard_output

PRINTS = """
import os, subprocess, sys
from pathlib import Path
from lsgd.job.command import run_alone, run_command

def work():
    for number in range(20000):
        print("line", number, flush=number % 100 == 0)
    print("a word of warning", file=sys.stderr)
    os.write(1, b"past Python")
    subprocess.run(["echo", "of a child"], check=True)
    Path(sys.argv[1]).write_text("done")
    print("at the end, in the buffer")

raise SystemExit({command}(work))
"""


@pytest.mark.parametrize(
    ("command", "merged", "flags"), [("run_alone", "", ""), ("run_command", "2>&1", "-u")]
)
def test_a_command_goes_on_without_a_reader(
    tmp_path: Path, command: str, merged: str, flags: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(command=command))
    pipe = f'"$0" {flags} "$1" "$2" {merged} | head -n 1; exit ${{PIPESTATUS[0]}}'
    words = ["bash", "-c", pipe, sys.executable, str(program), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.stdout == "line 0\n"
    assert done.stderr == ("" if merged else "a word of warning\n")
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "done"


def test_a_command_goes_on_without_any_output(tmp_path: Path) -> None:
    """Closed by the shell."""
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(command="run_alone"))
    words = [sys.executable, str(program), str(tmp_path / "out")]
    done = subprocess.run(["bash", "-c", '"$@" >&- 2>&-', "", *words], timeout=900)
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "done"


@pytest.mark.parametrize("words", [["--help"], ["launch", "mpirun", "--help"]])
def test_help_is_not_missed(words: list[str]) -> None:
    """Where nobody has read any of it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "lsgd", *words],
            stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=900,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_goes_on_where_a_disk_is_full(tmp_path: Path) -> None:
    """What it prints is lost, and that is said once."""
    program = tmp_path / "program.py"
    work = 'print("lost"), sys.stdout.flush(), print("too"), sys.stderr.write("here\\n"), 4'
    command = f"raise SystemExit(run_alone(lambda: ({work})[-1]))"
    program.write_text(f"import sys\nfrom lsgd.job.command import run_alone\n{command}\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, str(program)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=900,
        )  # fmt: skip
    lost = "lsgd: the output is lost (No space left on device); the command continues\n"
    assert (done.returncode, done.stderr) == (4, f"{lost}here\n")


def test_what_is_printed_is_harmless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever prints it: names that are no UTF-8, tracebacks, warnings and logs of libraries."""
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        guard_output()
        print("a\x1b[2J", "b\rc", "d\udcff", "é… 1 ± 2 ", "http://me:secret@host/")
    assert (tmp_path / "out").read_text() == (
        "a\\x1b[2J b\\x0dc d\\xff \\xe9... 1 +- 2  http://me:***@host/\n"
    )
