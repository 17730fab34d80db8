"""A place for studies, which leaves nothing running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.studies import TRIALS, Place

from lsgd.job import members


@pytest.fixture
def place(tmp_path: Path, installation: Path) -> Iterator[Place]:
    made = Place(tmp_path, installation)
    yield made
    for job in made.begun:
        job.kill()
        job.communicate()
    for folder in (tmp_path / TRIALS).glob("*"):
        members.stop(folder)
