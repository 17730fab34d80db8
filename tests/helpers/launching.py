"""How tests start several processes: each launcher's command for this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = [
    "torch",
    pytest.param("horovod-gloo", marks=pytest.mark.horovod),
    pytest.param("horovod-mpi", marks=[pytest.mark.horovod, pytest.mark.mpi]),
]
LAUNCHERS = {
    # For what processes compute over torch.distributed: they start in a third of the time.
    "forked": [sys.executable, str(Path(__file__).with_name("forked.py"))],
    "torch": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "horovod-gloo": [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np"],
    "horovod-mpi": ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"],
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def command(library: str, processes: int | str, *arguments: str) -> list[str]:
    """The words that start python with these arguments on so many processes."""
    python = [] if library in ("forked", "torch") else [sys.executable]
    return [*LAUNCHERS[library], str(processes), *python, *arguments]


def launch(
    library: str, processes: int, *arguments: str, limit: float = 240
) -> subprocess.CompletedProcess[str]:
    """Start python with these arguments on so many processes and wait for the end."""
    return subprocess.run(
        command(library, processes, *arguments),
        env=os.environ | AS_ROOT,
        capture_output=True,
        text=True,
        timeout=limit,
    )
