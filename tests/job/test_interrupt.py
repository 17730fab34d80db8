"""Ctrl-C while the libraries are still being imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.waiting import read_line

from lsgd import paths
from lsgd.job import interrupt

SLOW = """
import sys, time
print("imports", flush=True)
while True:
    time.sleep(0.01)
"""


def interrupted(
    tmp_path: Path, *words: str, ignored: bool = False, **environment: str
) -> tuple[int, str]:
    """Exit code and words of a process that gets SIGINT while it imports torch or Hydra."""
    for library in ("torch", "hydra"):
        (tmp_path / f"{library}.py").write_text(SLOW)
    path = f"{tmp_path}:{paths.conf_dir().parent}"
    clean = {name: value for name, value in os.environ.items() if name != "RANK"}
    process = subprocess.Popen(
        [sys.executable, *words],
        env=clean | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
    )  # fmt: skip
    with process:
        assert read_line(process) == "imports\n"
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=1 if ignored else 200)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, said


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "lsgd.train"],
        ["-m", "lsgd", "train"],
        ["-c", "from lsgd.__main__ import main; raise SystemExit(main())", "study"],
    ],
)
def test_one_line_and_130(words: list[str], tmp_path: Path) -> None:
    assert interrupted(tmp_path, *words) == (130, "\nlsgd: interrupted\n")


def test_only_the_first_process_of_a_job_says_it(tmp_path: Path) -> None:
    job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert interrupted(tmp_path, "-m", "lsgd.train", **job) == (130, "")


def test_a_job_of_the_background_does_not_hear_it(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        interrupted(tmp_path, "-m", "lsgd.train", ignored=True)


def test_a_program_that_imports_lsgd_keeps_its_own_ctrl_c(tmp_path: Path) -> None:
    code, said = interrupted(tmp_path, "-c", "import lsgd.train")
    assert code != 130
    assert said.endswith("KeyboardInterrupt\n")


def test_a_command_hears_it_as_ever() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt.exit_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        interrupt.restore_keyboard_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
