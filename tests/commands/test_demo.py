"""The words of `lsgd.demo`; what it shows is in the README, and takes two minutes."""

from pathlib import Path

import pytest
from helpers.usage_errors import usage_error

from lsgd.demo import main


@pytest.mark.parametrize("word", ["+recipe=digits", "epochs=1", "--epochs"])
def test_a_word_that_is_no_folder_makes_none(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert word in usage_error(main, capsys, word)
    assert not list(tmp_path.iterdir())
