"""Processes that are started for a while: nothing of them is left, and what they say is told."""

import os
from pathlib import Path

import pytest
from helpers.broken_machine import broken_environment, remaining_processes
from helpers.waiting import wait_until

from lsgd.job import children, ending
from lsgd.job.children import run_with_limit, running_child, telling_line
from lsgd.job.system import tagged_pids


@pytest.mark.parametrize("leaves", ["setsid sleep 600 & sleep 600", "setsid sleep 600 & exit 0"])
def test_what_left_the_process_group_is_ended_too(tmp_path: Path, leaves: str) -> None:
    """As the processes of mpirun and horovodrun do."""
    marked = broken_environment(tmp_path)
    limit = 200 if "exit" in leaves else 1
    code, _ = run_with_limit(["sh", "-c", leaves], limit=limit, environment=marked)
    assert code == (0 if "exit" in leaves else None)
    assert remaining_processes(marked) == []


def test_a_process_that_cannot_die_is_named_and_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that waits in the kernel; here it is there, and no signal reaches it."""
    with monkeypatch.context() as immortal:
        immortal.setattr(children, "GRACE", 0.1)
        immortal.setattr(ending, "DYING", 0.1)
        immortal.setattr(os, "kill", lambda pid, number: None)
        with running_child(["sleep", "600"]) as child:
            # Its environment can be read only once the kernel has started the program.
            wait_until(lambda: tagged_pids(children.OURS) == {child.process.pid})
            child.stop()
            assert f"does not end it: pid {child.process.pid}\n" in capsys.readouterr().err
            immortal.undo()
    assert child.process.wait(200) is not None


def test_a_missing_program_is_said() -> None:
    assert run_with_limit(["no-such-program"], limit=1) == (
        127,
        "no-such-program: No such file or directory",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[0]<stderr>:Segmentation fault\nProcess 0 exit with status code 139.\n"
            "Traceback (most recent call last):\nRuntimeError: Horovod detected that one or more",
            "Segmentation fault",
        ),
        ("[W1120 17:35:57.871567649 socket.cpp:764] [c10d] No address\n", "[c10d] No address"),
        ("-----\nmpirun has detected an attempt to run as root.\n-----\n", None),
        (
            "a warning\nTraceback:\n  x\nImportError: lib.so\nRuntimeError: job",
            "ImportError: lib.so",
        ),
        ("", ""),
    ],
)
def test_the_line_that_tells(text: str, line: str | None) -> None:
    assert telling_line(text) == (text.splitlines()[1] if line is None else line)
