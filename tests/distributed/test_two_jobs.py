"""Two jobs and one run folder: never both at a time, and one after the other at once."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.launching import command
from helpers.undisturbed import LINGERING, WORDS, assert_equal, rows

from lsgd.run import lock

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]


@contextlib.contextmanager
def job(folder: Path, processes: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """The run, by one process or several; of which none is left."""
    arguments = ["-m", "lsgd.train", *WORDS, LINGERING, f"run_dir={folder}"]
    start = [sys.executable, *arguments]
    if processes > 1:
        start = command("forked", processes, *arguments)
    with subprocess.Popen(
        start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as it:
        try:
            yield it
        finally:
            it.kill()  # which also ends a stopped one


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_second_is_told_who_the_first_is_and_the_next_begins_at_once(
    tmp_path: Path, undisturbed: Path
) -> None:
    run = tmp_path / "run"
    with job(run) as first:
        wait_for(lambda: len(rows(run, "train")) >= 4, 120)
        # Or it ends before the second has begun; a stopped one lives as well.
        first.send_signal(signal.SIGSTOP)
        with job(run) as second:
            said = second.communicate(timeout=120)[1]
        assert second.returncode == 2
        assert f"lsgd: run_dir={run} is being written by another job (process {first.pid} " in said
        assert said.count("\n") == 1
        first.kill()
        first.wait()
    assert (run / lock.FILE).exists()
    at = len(rows(run, "train"))
    with job(run, 2) as third:
        wait_for(lambda: len(rows(run, "train")) > at, 120)
        assert third.wait(120) == 0
    assert_equal(run, undisturbed)
    assert not (run / lock.FILE).exists()
