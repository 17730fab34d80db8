"""The launch commands by which tests start several processes on this machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

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
SERVER_PIDS: set[int] = set()
"""The process ids of the fork servers that this process has started and that run now."""


@contextmanager
def fork_server(*modules: str, environment: dict[str, str] | None = None) -> Iterator[list[str]]:
    """Start a fork server that has imported these modules; yield the command prefix to use it."""
    with tempfile.TemporaryDirectory(prefix="lsgd-forked-") as folder:
        path = f"{folder}/socket"
        start = [sys.executable, str(HELPERS / "forked.py"), "--serve", path, *modules]
        with subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert read_line(server) == "ready\n"
            SERVER_PIDS.add(server.pid)
            try:
                yield [sys.executable, "-IS", str(HELPERS / "client.py"), path]
            finally:
                server.kill()
                server.wait(timeout=900)
                SERVER_PIDS.remove(server.pid)


SERVERS = ExitStack()


@cache
def fork_command() -> list[str]:
    """Return the command prefix that launches forked processes over torch.distributed.

    The first call starts the fork server, and SERVERS stops it, so that its CPU time is counted.
    """
    # Not lsgd.train, since it is run as a program.
    modules = ("config", "evaluation", "learner", "run.folder", "run.saver", "step", "vision")
    return SERVERS.enter_context(fork_server("pytest", *(f"lsgd.{name}" for name in modules)))


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
