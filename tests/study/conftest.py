"""A place for studies, which leaves nothing running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.studies import Place, opened


@pytest.fixture
def place(tmp_path: Path, installation: Path) -> Iterator[Place]:
    with opened(tmp_path, installation) as made:
        yield made
