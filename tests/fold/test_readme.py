"""The examples of the README run as they stand there."""

import doctest
from pathlib import Path

from lsgd import fold


def test_the_examples_of_the_readme() -> None:
    readme = Path(fold.__file__).parent / "README.md"
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(readme), module_relative=False, optionflags=flags)
    assert tried > 0
    assert failed == 0
