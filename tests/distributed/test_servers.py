"""Parameter servers that wait for all workers, in jobs: all-reduce to 1e-10 in float64.

tests/helpers/server_runs.py makes all runs of a job in one launch.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from helpers import server_runs
from helpers.launching import launch
from helpers.server_runs import ALLREDUCE, CASES, RUNS, SPLIT_RUNS, sync
from helpers.undisturbed import assert_equal, rows, saved
from sketches import jobs

from lsgd.comm.single import SingleComm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every launch has a folder, next to that of the process alone."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def alone(folder: Path):
    """The folder of a run by all-reduce that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        run = folder / "alone" / name
        server_runs.run(SingleComm(), run, ALLREDUCE, **RUNS[name])
        return run

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone):
    """The folder of all runs of so many processes."""

    @cache
    def made(processes: int) -> Path:
        alone("left")
        (out := folder / str(processes)).mkdir()
        done = launch("torch", processes, server_runs.__file__, str(out))
        # The launcher says so of the process that is killed when all else is done.
        assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made
