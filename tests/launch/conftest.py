"""An environment that says nothing to launchers, in which no test becomes a job."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from lsgd.launch.__main__ import main
from lsgd.launch.commands import exported_variables
from lsgd.launch.launch_command import LaunchCommand


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "PYTHON", "OMP_NUM_THREADS", "LSGD_DATA", "LSGD_SUPERVISED", "MASTER_ADDR", "MASTER_PORT",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name in exported_variables(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")

    def refuse(program: str, words: list[str]) -> None:
        raise AssertionError(f"the tests would become {words}")

    monkeypatch.setattr(os, "execvp", refuse)
    kept = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    yield
    # What would have become a job has reset them, and a later test's full disk would kill pytest.
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What `python -m lsgd.launch … --print` prints, also of words that no recipe has."""
    monkeypatch.setattr(LaunchCommand, "check", lambda start: None)

    def words_printed(*words: str) -> str:
        code = main([*words, "--print"])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        return output.out

    return words_printed
