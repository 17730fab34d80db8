"""Words that a benchmark cannot use are refused before anything is measured or written."""

import re
from pathlib import Path

import pytest
from helpers.usage_errors import usage_error

from lsgd.bench.__main__ import main
from lsgd.job.launcher import Launch


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no benchmark is given; write python -m lsgd.bench inputs"),
        ("input", "benchmark 'input' does not exist; did you mean inputs"),
        ("step +recipe=digits", "in a checkout python -m benchmarks.step .recipe=digits"),
        ("fold +recipe=sst_treelstm", "in a checkout python -m benchmarks.fold .recipe=sst_"),
        ("inputs", "no recipe is given"),
        ("inputs +recipe=digits", "digits has no image files to load"),
        ("inputs +recipe=bs256 rehearse=true", "a dry run has no image files to load"),
        ("inputs +recipe=bs256 --rounds 3", "--rounds 3 is too few"),
        ("inputs +recipe=bs256 --rounds 0", "--rounds 0 .* measures nothing"),
        ("inputs +recipe=bs256 --images 0", "--images 0 is not possible; write 1"),
        ("inputs +recipe=bs256 --image 9", "option --image does not exist"),
        ("scaling +recipe=digits --limit 0", "--limit: 0 is not a number of seconds from 1e-9"),
        ("scaling +recipe=digits --np 0", "--np 0 is not a list of numbers of 1 or more"),
        ("scaling +recipe=digits --out .", "--out . exists already"),
        ("inputs +recipe=bs256 data.root=nowhere --out new", "the folder does not exist"),
    ],
)
def test_they_are_refused(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(message, usage_error(main, capsys, *words.split()))
    assert not list(tmp_path.iterdir())


def test_a_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two processes each would start all that are measured."""
    monkeypatch.setattr(
        "lsgd.bench.setting.detect_launch", lambda: Launch("torchrun", world_size=2)
    )
    said = usage_error(main, capsys, "scaling", "+recipe=digits")
    assert "torchrun started 2 processes, and this benchmark starts its own; start it" in said
