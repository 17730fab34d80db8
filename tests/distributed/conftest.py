"""What tests of jobs have in common."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.slurm import SlurmCluster, cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A cluster of two nodes, which takes a while to start."""
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every launch has a folder, next to that of the process alone."""
    return tmp_path_factory.mktemp("jobs")
