"""What benchmarks.comm refuses and computes; test_comm_launches.py starts its jobs."""

from argparse import Namespace
from contextlib import contextmanager
from typing import NoReturn

import pytest

from benchmarks import comm
from benchmarks.comm import exposed_milliseconds, hidden_percent
from benchmarks.reductions import BARE, OURS, SUMS_ONLY
from lsgd.errors import UsageError

DIGITS = ["+recipe=digits", "worker_batch=3"]


def test_what_is_hidden_and_what_is_exposed() -> None:
    """Steps of 10 ms without sums and 12 ms with them, which alone take 8 ms: a quarter shows."""
    rounds = {OURS: [1 / 0.012] * 6, BARE: [1 / 0.010] * 6, SUMS_ONLY: [1 / 0.008] * 6}
    assert hidden_percent(rounds, OURS).median == pytest.approx(75)
    assert exposed_milliseconds(rounds, OURS).median == pytest.approx(2)


def test_a_job_that_cannot_be_is_missing_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each number of passes that it was to have."""

    @contextmanager
    def refused(*_: object, **__: object) -> NoReturn:
        raise UsageError("this way")

    monkeypatch.setattr(comm, "open_job", refused)
    result: dict = {"measured": [], "missing": {}}
    options = Namespace(rounds=6, passes=1, limit=4, words=DIGITS)
    comm.bench_job(result, "torch", 2, [1, 8], options)
    where = "2 processes over torch, accumulation"
    assert result == {
        "measured": [],
        "missing": {f"{where} 1": "this way", f"{where} 8": "this way"},
    }
