"""What tests of jobs have in common."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every launch has a folder, next to that of the process alone."""
    return tmp_path_factory.mktemp("jobs")
