"""A reader that leaves, as `| head` does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("command", ["run_alone", "run_command"])
@pytest.mark.parametrize("stream", ["1", "2>&1"])
@pytest.mark.parametrize("flags", ["", "-u"])
def test_a_command_goes_on_without_a_reader(
    tmp_path: Path, command: str, stream: str, flags: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(command=command))
    merged = stream if stream != "1" else ""
    pipe = f'"$0" {flags} "$1" "$2" {merged} | head -n 1; exit ${{PIPESTATUS[0]}}'
    words = ["bash", "-c", pipe, sys.executable, str(program), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "line 0\n"
    assert done.stderr == ("" if merged else "a word of warning\n")
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "done"


def test_a_command_goes_on_without_any_output(tmp_path: Path) -> None:
    """Closed by the shell."""
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(command="run_alone"))
    words = [sys.executable, str(program), str(tmp_path / "out")]
    done = subprocess.run(["bash", "-c", '"$@" >&- 2>&-', "", *words], timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "done"


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["launch", "mpirun", "--help"]])
def test_help_is_not_missed(words: list[str]) -> None:
    """Where nobody has read any of it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "lsgd", *words],
            stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_training_goes_on_without_a_reader(tmp_path: Path) -> None:
    short = "epochs=2 schedule.milestones=[] schedule.warmup_epochs=0.5 log_steps=1"
    run = f'"$0" -m lsgd.train +recipe=digits {short} run_dir="$1" 2>&1 | head -n 2'
    done = subprocess.run(
        ["bash", "-c", f"{run}; exit ${{PIPESTATUS[0]}}", sys.executable, str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 2
    assert (tmp_path / "run/milestone-10.pt").exists() or (
        tmp_path / "run/checkpoint-10.pt"
    ).exists()
