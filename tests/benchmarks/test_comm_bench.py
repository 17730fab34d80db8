"""What benchmarks.comm refuses and computes; test_comm_launches.py starts its jobs."""

from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from helpers.refusals import refusal

from benchmarks import comm
from benchmarks.comm import exposed, hidden, main
from benchmarks.reductions import ALONE, BARE, OURS
from lsgd.errors import Refused

DIGITS = ["+recipe=digits", "worker_batch=3"]


def test_what_is_hidden_and_what_is_exposed() -> None:
    """Steps of 10 ms without sums and 12 ms with them, which alone take 8 ms: a quarter shows."""
    rounds = {OURS: [1 / 0.012] * 6, BARE: [1 / 0.010] * 6, ALONE: [1 / 0.008] * 6}
    assert hidden(rounds, OURS).median == pytest.approx(75)
    assert exposed(rounds, OURS).median == pytest.approx(2)


def test_a_job_that_cannot_be_is_missing_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each number of passes that it was to have."""

    @contextmanager
    def refused(*_: object, **__: object) -> NoReturn:
        raise Refused("this way")

    monkeypatch.setattr(comm, "open_job", refused)
    result: dict = {"measured": [], "missing": {}}
    options = Namespace(rounds=6, passes=1, limit=4, words=DIGITS)
    comm.bench_job(result, "torch", 2, [1, 8], options)
    where = "2 processes over torch, accumulation"
    assert result == {
        "measured": [],
        "missing": {f"{where} 1": "this way", f"{where} 8": "this way"},
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no recipe is given"),
        ([*DIGITS, "--np", "1"], "--np 1 is not a list of numbers from 2 on; write for"),
        ([*DIGITS, "--np", "2;4"], "--np 2;4 is not a list of numbers"),
        ([*DIGITS, "--accumulation", "0"], "--accumulation 0 is not a list"),
        ([*DIGITS, "--over", "mpi"], "--over mpi is no library; write torch, horovod"),
        ([*DIGITS, "gradient_compression=fp16"], "gradient_compression=fp16 would make"),
        ([*DIGITS, "compile=true"], "compile=true is not for this benchmark"),
        ([*DIGITS, "--rounds", "2"], "--rounds 2 is too few"),
        ([*DIGITS, "--passes", "0"], "--passes 0 is not possible; write a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(main, capsys, *argv)


def test_an_existing_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is there already" in refusal(main, capsys, *DIGITS, "--out", str(tmp_path))
