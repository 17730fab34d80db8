"""The error messages of commands for invalid command lines."""

from collections.abc import Callable, Sequence

import pytest


def usage_error(
    main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str], *argv: str
) -> str:
    """Return a command's error for these arguments; assert one line and exit code 2."""
    assert main(argv) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("lsgd: ")
    assert sentence.count("\n") == 1
    return sentence
