"""A run folder has one supervisor at a time, which keeps its logbook there."""

from pathlib import Path

import pytest

from lsgd.errors import Refused
from lsgd.run import checkpoint
from lsgd.supervise import folder
from lsgd.supervise.logbook import open_logbook


def test_one_supervisor_per_run(tmp_path: Path) -> None:
    said = pytest.raises(Refused, match="has a supervisor already")
    with open_logbook(tmp_path), said, open_logbook(tmp_path, patience=0.1):
        pass
    with open_logbook(tmp_path):
        pass


def test_the_run_is_where_the_supervisor_looks_for_it() -> None:
    """It does not import lsgd.run.checkpoint, which imports torch."""
    assert checkpoint.FILE == folder.CHECKPOINT
