"""What tests of supervisors have in common."""

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts programs with a pipe for what they say, which the end of a test takes with theirs."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        begun.append(subprocess.Popen(words, text=True, **pipes, **options))
        return begun[-1]

    yield start
    for program in begun:
        program.kill()
        program.communicate(timeout=900)
