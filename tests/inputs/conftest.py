"""What the tests of loaders share."""

from pathlib import Path

import pytest
from helpers.folders import make_folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("made") / "root")
