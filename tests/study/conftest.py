"""A place for studies, which leaves nothing running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.studies import StudyFolder, study_folder


@pytest.fixture
def place(tmp_path: Path, installation: Path) -> Iterator[StudyFolder]:
    with study_folder(tmp_path, installation) as made:
        yield made
