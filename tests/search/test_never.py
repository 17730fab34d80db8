"""A search of how soon a target is reached, which no point or no seed reaches."""

import json
import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from lsgd.rules.metric import METRICS, TimeToTarget
from lsgd.search.record import SearchRecord, load_record, save_record
from lsgd.search.report import write_page
from lsgd.search.trial import FINISHED, Trial, best_trial

NOON = datetime(2026, 1, 1, 12)
STEPS = TimeToTarget.for_metric(METRICS["top1_error"], 5.0, time_unit="steps")
POINTS = [
    Trial(
        number, {"schedule.reference_lr": 0.1 * (1 + number)}, FINISHED, value, {}, "", NOON, NOON
    )
    for number, value in enumerate((math.inf, 200.0, math.inf))
]
RECORD = SearchRecord(
    "one", "Of one", "command", "tpe", 3, 2, STEPS, POINTS, best=[200.0, math.inf],
    default=[math.inf, math.inf], start={},
)  # fmt: skip


def test_the_best_is_one_that_arrives() -> None:
    assert best_trial(POINTS) == POINTS[1]
    assert best_trial([POINTS[0]]) is None


@pytest.mark.slow
@pytest.mark.parametrize("points", [POINTS, POINTS[:1]])
def test_the_page_says_who_never_arrived(points: list[Trial], tmp_path: Path) -> None:
    record = replace(
        RECORD, points=points, **({} if len(points) > 1 else {"best": [], "default": []})
    )
    write_page([record], tmp_path, "command")
    text = (tmp_path / "README.md").read_text()
    if len(points) == 1:
        assert "No trial has reached its target: steps to top-1 error 5.00 %" in text
    else:
        assert "2 of 2 never" in text
        assert "200.00, 1 of 2 never" in text
    save_record(record, tmp_path)
    assert load_record(tmp_path) == record
    json.loads(
        (tmp_path / "points.json").read_text(), parse_constant=lambda word: pytest.fail(word)
    )
