"""The command line: each way it ends short is one sentence that says how to go on."""

from collections.abc import Sequence

import pytest

from lsgd.prepare import cifar10
from lsgd.prepare.__main__ import main


@pytest.mark.parametrize("words", [[], ["mnist"], ["imagenet"], ["cifar10", "--bogus"]])
def test_words_that_make_no_sense(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a dataset's own parser too."""
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("lsgd: ")
    assert "; see --help" in told or "does not exist; did you mean fashion-mnist" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "\nlsgd: interrupted; rerun the same command to resume\n"),
        (
            OSError("No space left on device"),
            2,
            "lsgd: No space left on device; fix that and rerun the same command to resume\n",
        ),
    ],
)
def test_the_same_command_goes_on(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(cifar10, "prepare", stop)
    assert main(["cifar10", "somewhere"]) == code
    assert capsys.readouterr().err == sentence
