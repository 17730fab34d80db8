"""What the tests of lsgd.prepare share."""

import pytest

from lsgd.prepare import suggestion


@pytest.fixture
def real_steps() -> None:
    """Let a test time real steps, which takes a second of it."""


@pytest.fixture(autouse=True)
def made_up_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make up the seconds of a step, since any will do for the command that is suggested."""
    if "real_steps" not in request.fixturenames:
        step = suggestion.TimedStep(0.001, 0.01)
        monkeypatch.setattr(suggestion, "timed_step", lambda recipe: step)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
