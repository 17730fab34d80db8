"""The launch commands by which tests start several processes on this machine."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest

from helpers.waiting import read_line

LIBRARIES = [
    "torch",
    pytest.param("horovod-gloo", marks=pytest.mark.horovod),
    pytest.param("horovod-mpi", marks=[pytest.mark.horovod, pytest.mark.mpi]),
]
LAUNCHERS = {
    "torch": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "horovod-gloo": [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np"],
    "horovod-mpi": ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"],
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Gloo's default limit is 30 s; on a busy machine two all-reduces may be further apart.
FOR_JOBS = AS_ROOT | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}


HELPERS = Path(__file__).parent
WITHOUT_COMPILER = str(HELPERS / "without_compiler")
"""A folder on whose PYTHONPATH a real training process starts in three fifths of the CPU time."""
SERVER_PIDS: set[int] = set()
"""The process ids of the fork servers that this process has started and that run now."""


@contextmanager
def fork_server(
    *modules: str,
    environment: dict[str, str] | None = None,
    python: Sequence[str] = (sys.executable,),
    folder: Path | None = None,
) -> Iterator[list[str]]:
    """Start a fork server that has imported these modules; yield the command prefix to use it.

    `python` may be the prefix of another server: this one then starts as its fork. Modules of
    `folder` come first.
    """
    with tempfile.TemporaryDirectory(prefix="lsgd-forked-") as place:
        path = f"{place}/socket"
        start = [*python, str(HELPERS / "forked.py"), "--serve", path, *modules]
        with subprocess.Popen(
            start, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
        ) as server:
            ready, pid = read_line(server).split()
            assert ready == "ready"
            SERVER_PIDS.add(int(pid))
            try:
                yield [sys.executable, "-IS", str(HELPERS / "client.py"), path]
            finally:
                parent = psutil.Process(int(pid)).parent()
                os.kill(int(pid), signal.SIGKILL)
                server.wait(timeout=900)
                # Another server's fork, whose CPU time that server counts once it has ended.
                while parent and parent.pid != os.getpid() and parent.is_running():
                    time.sleep(0.01)
                SERVER_PIDS.remove(int(pid))


def write_program(path: Path, *start: object) -> str:
    """Write a program that runs this command prefix with its own arguments; return its path."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, start))} "$@"\n')
    path.chmod(0o755)
    return str(path)


SERVERS = ExitStack()
TRAINING = [
    f"lsgd.{name}"
    for name in ("config", "evaluation", "learner", "run.folder", "run.saver", "step", "vision")
]
"""The modules that a run imports, but lsgd.train, since it is run as a program."""


@cache
def fork_command() -> list[str]:
    """Return the command prefix that launches forked processes over torch.distributed.

    The first call starts the fork server, and SERVERS stops it, so that its CPU time is counted.
    """
    return SERVERS.enter_context(fork_server("pytest", *TRAINING))


def serve_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and torchrun start Python programs as forks of the fork server.

    This is for commands that start jobs of their own. The program of the fork is in `folder`.
    Signals do not reach forks, so jobs that are killed need real processes.
    """
    program = write_program(folder / "forked-python", *fork_command())
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setenv("PYTHON_EXEC", program)


def command(library: str, processes: int | str, *arguments: str) -> list[str]:
    """Return the command that launches python with these arguments on `processes` processes."""
    python = [] if library in ("forked", "torch") else [sys.executable]
    start = fork_command() if library == "forked" else LAUNCHERS[library]
    return [*start, str(processes), *python, *arguments]


def launch(
    library: str, processes: int, *arguments: str, limit: float = 1800
) -> subprocess.CompletedProcess[str]:
    """Launch python with these arguments on `processes` processes, and wait until they exit."""
    return subprocess.run(
        command(library, processes, *arguments),
        env=os.environ | FOR_JOBS,
        capture_output=True,
        text=True,
        timeout=limit,
    )
