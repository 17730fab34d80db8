"""What a command line answers to words that make no sense."""

from collections.abc import Callable, Sequence

import pytest


def refusal(
    main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str], *argv: str
) -> str:
    """What the command says of these words; it must be one sentence, and exit code 2."""
    assert main(argv) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("lsgd: ")
    assert sentence.count("\n") == 1
    return sentence
