"""What is seen of processes from outside, and that none of them stays."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from lsgd.bench.watched import Sighting, Watched, watch
from lsgd.errors import Refused
from lsgd.job.children import OURS
from lsgd.job.ending import tagged

WRITES = """
import json, sys, time
for step in (10, 20, 30):
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    row = {"kind": "train", "step": step, "loss": 1.0, "images_per_second": 1000.0}
    with open(sys.argv[1], "a") as rows:
        print(json.dumps(row), file=rows)
time.sleep(0.2)
"""
WAITS = "import time; time.sleep(600)"


def python(program: str, *words: str) -> tuple[list[str], Mapping[str, str]]:
    return [sys.executable, "-c", program, *words], {}


def test_rows_and_their_cpu_are_seen(tmp_path: Path) -> None:
    """A second process, which would go on, ends with the first."""
    file = tmp_path / "rows.jsonl"
    run = watch("x", [python(WRITES, str(file)), python(WAITS)], file, limit=60)
    assert [row["step"] for row in run.training] == [10, 20, 30]
    assert [each.rows for each in run.sightings] == [1, 2, 3]
    first, last = run.sightings[0], run.sightings[-1]
    # Two turns of the loop, to the ticks of the system's clock.
    assert last.cpu_seconds - first.cpu_seconds == pytest.approx(0.4, abs=0.1)
    assert run.cores() == (last.cpu_seconds - first.cpu_seconds) / (last.seconds - first.seconds)
    assert not tagged(OURS)


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        (["raise ValueError('lost')", WAITS], "ValueError: lost"),
        ([WAITS, "raise ValueError('lost')"], "ValueError: lost"),
        ([WAITS], "it did not end in 1.5 s; --limit, where there is one, allows more"),
        (["pass"], "its rows were seen 0 times, .* such as data.train_examples=3200"),
    ],
)
def test_what_fails_is_said_and_ended(programs: list[str], why: str, tmp_path: Path) -> None:
    limit = 1.5 if programs == [WAITS] else 60
    begin = time.monotonic()
    with pytest.raises(Refused, match=f"^x: {why}"):
        watch("x", list(map(python, programs)), tmp_path / "rows.jsonl", limit=limit)
    assert time.monotonic() - begin < 30
    assert not tagged(OURS)


def test_what_counts_is_after_the_first_row() -> None:
    """10 updates of 4 images before it, of which 9 count at the steady pace; then 20 updates."""
    speeds = [1.0, 100.0, 50.0]
    rows = [
        {"kind": "train", "step": 10 * (place + 1), "images_per_second": speed}
        for place, speed in enumerate(speeds)
    ]
    run = Watched(
        [{"kind": "start", "step": 0}, *rows],
        [Sighting(1, 9.0, 5.0), Sighting(2, 9.4, 5.3), Sighting(3, 10.2, 6.8)],
    )
    # 40 images in 0.4 s, and as many in 0.8 s.
    assert run.speed(images=4) == pytest.approx(80 / 1.2)
    assert run.start_up(images=4) == pytest.approx(9 - 9 * 1.2 / 20)
    assert run.start_up_cpu() == pytest.approx(5 - 9 * 1.8 / 20)
    assert run.cores() == pytest.approx(1.8 / 1.2)
