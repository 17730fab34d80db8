"""What jobs and the scaling over them refuse and compute; test_job_launches.py starts the jobs."""

from pathlib import Path

import pytest
from helpers.refusals import refusal

from lsgd.bench import scaling
from lsgd.bench.__main__ import main
from lsgd.job.launcher import Launch

DIGITS = ["+recipe=digits", "worker_batch=3"]


def test_efficiency_is_speed_by_processes() -> None:
    """3 times the speed on 4 processes is 75 %."""
    speeds = {"1": [100.0] * 6, "4": [300.0] * 6}
    job = {"over": "x", "threads": 1, "images": 8, "workers_per_pass": 2}
    jobs = dict.fromkeys(speeds, job)
    [_, _, one, four] = scaling.table("weak", speeds, jobs, cores=4).splitlines()
    cells = [cell.strip() for cell in four.split("|")[1:-1]]
    assert one.split("|")[-2].strip() == "100 %"
    assert cells == ["4, x", "1, threads: 1", "8", "2", "300 (300 to 300)", "75 % (75 to 75)"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["scaling", *DIGITS, "--limit", "0"], "--limit: 0 is not a number of seconds above 0"),
        (["scaling", *DIGITS, "--np", ""], "--np  is not a list of numbers from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(main, capsys, *argv)


def test_it_starts_its_own_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lsgd.bench.setting.detect", lambda: Launch("torchrun", world_size=2))
    said = refusal(main, capsys, "scaling", *DIGITS)
    assert "torchrun started 2 processes, and this benchmark starts its own; start it" in said


def test_an_existing_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is there already" in refusal(main, capsys, "scaling", *DIGITS, "--out", str(tmp_path))
