"""What is seen of processes from outside, and that none of them stays."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import run_observation
from benchmarks.run_observation import ObservedRun, RowObservation, observe_run
from lsgd.errors import UsageError
from lsgd.job.children import OURS
from lsgd.job.system import tagged_pids

# Each row waits until the one before was seen, however busy the machine is.
WRITES = """
import json, os, sys, time
for number in (1, 2, 3):
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    row = {"kind": "train", "step": 10 * number, "loss": 1.0, "images_per_second": 1000.0}
    with open(sys.argv[1], "a") as rows:
        print(json.dumps(row), file=rows)
    while os.path.getsize(sys.argv[2]) < number:
        time.sleep(0.01)
"""
WAITS = "import time; time.sleep(600)"


def python(program: str, *words: str) -> tuple[list[str], Mapping[str, str]]:
    return [sys.executable, "-c", program, *words], {}


@pytest.mark.slow
def test_rows_and_their_cpu_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process, which would go on, ends with the first."""
    file, seen = tmp_path / "rows.jsonl", tmp_path / "seen"
    seen.touch()
    cpu_seconds = run_observation._cpu_seconds

    def look() -> float:
        seconds = cpu_seconds()
        with seen.open("a") as looks:
            looks.write("x")
        return seconds

    monkeypatch.setattr(run_observation, "_cpu_seconds", look)
    programs = [python(WRITES, str(file), str(seen)), python(WAITS)]
    run = observe_run("x", programs, file, limit=200)
    assert [row["step"] for row in run.training] == [10, 20, 30]
    assert [each.rows for each in run.observations] == [1, 2, 3]
    first, last = run.observations[0], run.observations[-1]
    # Two turns of the loop, to the ticks of a clock, and the start of the second process.
    assert 0.38 < last.cpu_seconds - first.cpu_seconds < 1
    assert run.busy_cores() == (last.cpu_seconds - first.cpu_seconds) / (
        last.seconds - first.seconds
    )
    assert not tagged_pids(OURS)


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        (["raise ValueError('lost')", WAITS], "ValueError: lost"),
        ([WAITS, "raise ValueError('lost')"], "ValueError: lost"),
        ([WAITS], "it did not end in 1.5 s; raise --limit if the command has it"),
        (["pass"], "its rows were seen 0 times, .* such as data.train_examples=3200"),
    ],
)
def test_what_fails_is_said_and_ended(programs: list[str], why: str, tmp_path: Path) -> None:
    limit = 1.5 if programs == [WAITS] else 200
    with pytest.raises(UsageError, match=f"^x: {why}"):
        observe_run("x", list(map(python, programs)), tmp_path / "rows.jsonl", limit=limit)
    assert not tagged_pids(OURS)


def test_what_counts_is_after_the_first_row() -> None:
    """10 updates of 4 images before it, of which 9 count at the steady pace; then 20 updates."""
    speeds = [1.0, 100.0, 50.0]
    rows = [
        {"kind": "train", "step": 10 * (place + 1), "images_per_second": speed}
        for place, speed in enumerate(speeds)
    ]
    run = ObservedRun(
        [{"kind": "start", "step": 0}, *rows],
        [RowObservation(1, 9.0, 5.0), RowObservation(2, 9.4, 5.3), RowObservation(3, 10.2, 6.8)],
    )
    # 40 images in 0.4 s, and as many in 0.8 s.
    assert run.speed(images=4) == pytest.approx(80 / 1.2)
    assert run.start_up(images=4) == pytest.approx(9 - 9 * 1.2 / 20)
    assert run.start_up_cpu() == pytest.approx(5 - 9 * 1.8 / 20)
    assert run.busy_cores() == pytest.approx(1.8 / 1.2)
