"""What the benchmarks of jobs refuse and compute; test_job_launches.py starts the jobs."""

from pathlib import Path

import pytest

from lsgd.bench import scaling
from lsgd.bench.__main__ import main
from lsgd.bench.comm import exposed, hidden
from lsgd.bench.job import numbers
from lsgd.bench.reductions import ALONE, BARE, OURS
from lsgd.errors import Refused

DIGITS = ["+recipe=digits", "worker_batch=3"]


def test_what_is_hidden_and_what_is_exposed() -> None:
    """Steps of 10 ms without sums and 12 ms with them, which alone take 8 ms: a quarter shows."""
    rounds = {OURS: [1 / 0.012] * 6, BARE: [1 / 0.010] * 6, ALONE: [1 / 0.008] * 6}
    assert hidden(rounds, OURS).median == pytest.approx(75)
    assert exposed(rounds, OURS).median == pytest.approx(2)


def test_efficiency_is_speed_by_processes() -> None:
    """3 times the speed on 4 processes is 75 %."""
    speeds = {"1": [100.0] * 6, "4": [300.0] * 6}
    job = {"over": "x", "threads": 1, "images": 8, "workers_per_pass": 2}
    jobs = dict.fromkeys(speeds, job)
    [_, _, one, four, _] = scaling._table("weak", speeds, jobs, cores=4)
    assert one.endswith("| 100 % |")
    assert four == "| 4, x | 1, threads: 1 | 8 | 2 | 300 (300 to 300) | 75 % (75 to 75) |"


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["comm"], "no recipe is given"),
        (["comm", *DIGITS, "--np", "1"], "--np 1 is not a list of numbers from 2 on; write for"),
        (["comm", *DIGITS, "--np", "2;4"], "--np 2;4 is not a list of numbers"),
        (["comm", *DIGITS, "--accumulation", "0"], "--accumulation 0 is not a list"),
        (["comm", *DIGITS, "--over", "mpi"], "--over mpi is no library; write torch, horovod"),
        (["comm", *DIGITS, "gradient_compression=fp16"], "gradient_compression=fp16 would make"),
        (["comm", *DIGITS, "compile=true"], "compile=true is not for this benchmark"),
        (["comm", *DIGITS, "--rounds", "2"], "--rounds 2 is too few"),
        (["comm", *DIGITS, "--passes", "0"], "--passes 0 is not possible; write a number above 0"),
        (["scaling", *DIGITS, "--limit", "0"], "--limit 0 is not possible; write a number above 0"),
        (["scaling", *DIGITS, "--np", ""], "--np  is not a list of numbers from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, *argv)


def test_it_starts_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(Refused, match="torchrun started 2 processes, and this benchmark starts"):
        numbers("--np", "2", least=1)


def test_an_existing_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is there already" in refusal(capsys, "comm", *DIGITS, "--out", str(tmp_path))
