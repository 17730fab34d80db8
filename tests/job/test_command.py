"""How a command that is no process of a job ends."""

import errno
import os
import platform
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lsgd import paths
from lsgd.comm import joined
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from, run_alone, run_command, seconds
from lsgd.recipe import CommSettings


def refused() -> int:
    raise UsageError("--np 0 is no number of processes; write 1 or more")


def interrupted() -> int:
    raise KeyboardInterrupt


def full() -> int:
    raise OSError(errno.ENOSPC, "No space left on device", "runs/a")


def read_only() -> int:
    raise OSError(errno.EROFS, "Read-only file system", "runs/a")


def missing() -> int:
    raise OSError(errno.ENOENT, "No such file or directory", "runs/a")


FULL = (
    "runs/a could not be written (No space left on device); free some space and rerun the same "
    "command"
)


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (lambda: None, 0, ""),
        (lambda: 1, 1, ""),
        (refused, 2, "lsgd: --np 0 is no number of processes; write 1 or more\n"),
        (interrupted, 130, "\nlsgd: interrupted\n"),
        (full, 6, f"lsgd: {FULL} to resume\n"),
        (
            read_only,
            2,
            "lsgd: runs/a cannot be used (Read-only file system); write another path, or change "
            "this one or its permissions\n",
        ),
    ],
)
def test_exit_codes(command, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_alone(command) == code
    assert capsys.readouterr().err == says


def test_a_missing_file_may_be_an_error_of_lsgd() -> None:
    with pytest.raises(FileNotFoundError):
        run_alone(missing)


def test_a_process_of_a_job_on_a_full_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LSGD_SUPERVISED", "PMI_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run_command(full) == 6
    assert capsys.readouterr().err == f"lsgd: process 0: {FULL} to resume\n"


def test_a_process_of_a_job_with_a_path_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(read_only) == 2
    says = "lsgd: process 0: runs/a cannot be used (Read-only file system); write another path, or"
    assert capsys.readouterr().err.startswith(says)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """A function that makes this process one of a job of two machines, by rank and local rank."""

    def launch(rank: int, local_rank: int) -> None:
        variables = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return launch


def test_the_first_process_of_each_machine_says_why_it_does_not_join(
    launched: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be the only one with the error, and the others wait for it without a reason."""
    reason = "--np 0 is no number of processes; write 1 or more\n"
    host = platform.node()
    says = {0: reason, 1: "", 2: f"process 2 on {host}: {reason}", 3: ""}
    for rank, line in says.items():
        launched(rank, rank % 2)
        assert run_command(refused) == 2
        assert capsys.readouterr().err == (f"lsgd: {line}" if line else "")


def test_where_the_processes_have_joined_process_0_alone_says_why_they_end(
    launched: Callable[[int, int], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def joins() -> None:
        with joined(CommSettings(), torch.device("cpu")):
            refused()

    monkeypatch.setattr("lsgd.comm.open_comm", lambda *_: SingleComm())
    for rank in (0, 2):
        launched(rank, 0)
        assert run_command(joins) == 2
        assert bool(capsys.readouterr().err) == (rank == 0)


class InductorError(RuntimeError):
    """A stand-in for the error of torch.compile, the import of which takes seconds."""

    __module__ = "torch._inductor.exc"


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (
            InductorError,
            "InvalidCxxCompiler: No working C++ compiler found in cpp.cxx: ('g++',)\n\nSet …",
            "InvalidCxxCompiler: No working C++ compiler found in cpp.cxx: ('g++',)",
        ),
        (
            InductorError,
            "backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please …",
            "RuntimeError: Failed to find C compiler. Please …",
        ),
        (InductorError, "LoweringException: of a fault in the compiler", ""),
        (RuntimeError, "InvalidCxxCompiler", ""),
    ],
)
def test_a_missing_compiler_is_named(
    kind: type[Exception], text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiles() -> None:
        raise kind(text)

    if not why:
        with pytest.raises(kind):
            run_command(compiles)
        return
    assert run_command(compiles) == 2
    assert capsys.readouterr().err == (
        "lsgd: process 0: compile=true needs a compiler, which torch.compile does not find "
        f"({why}); install gcc, g++ and python3-dev, and triton for a GPU, or write compile=false\n"
    )


@pytest.mark.parametrize("run", ["run_alone", "run_command"])
def test_a_process_ends_by_its_code_wherever_ctrl_c_found_it(run: str, tmp_path: Path) -> None:
    """Python itself would end it by SIGINT, since the interrupt has left a string of exec."""
    program = f"from lsgd.job.command import {run}\nraise SystemExit({run}(lambda: exec('{{}}')))"
    (tmp_path / "program.py").write_text(program.format("raise KeyboardInterrupt"))
    path = f"{tmp_path}:{paths.conf_dir().parent}"
    ended = subprocess.run(
        [sys.executable, "-m", "program"], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (130, "\nlsgd: interrupted\n")


def test_it_is_no_process_of_a_supervised_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does it ask for the launcher, which may be one that nobody knows."""
    monkeypatch.setattr(os, "environ", {"LSGD_SUPERVISED": str(tmp_path), "PMI_SIZE": "2"})
    assert run_alone(lambda: None) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_parser_refuses_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("lsgd.compare", "About.")
    parser.add_argument("--tolerance", type=float)
    for run in (run_alone, run_command):
        assert run(lambda: parser.parse_args(["--tol", "1"])) == 2
        assert capsys.readouterr().err == (
            "lsgd: option --tol does not exist; did you mean --tolerance?\n"
        )


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (integer_from(1), {"1": 1, "999999999": 999999999}, "0 -1 +1 1.0 1e3 nan ² two 1_0 "),
        (integer_from(0), {"0": 0}, "-1 1000000000"),
        (seconds, {"0.5": 0.5, "1e3": 1000.0}, "0 -1 nan inf 1e10 soon "),
    ],
)
def test_a_number_of_an_option(kind, right: dict[str, float], wrong: str) -> None:
    assert {text: kind(text) for text in right} == right
    for text in wrong.split(" "):
        with pytest.raises(ArgumentTypeError):
            kind(text)
