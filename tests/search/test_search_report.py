"""The page on searches: what it counts, and that what a search has left makes it again."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lsgd import config
from lsgd.recipe.search import Search
from lsgd.rules.metric import METRICS, TOP1
from lsgd.search.__main__ import main
from lsgd.search.record import SearchRecord, check_comparable, load_record, make_record, save_record
from lsgd.search.report import _against, relative_improvement, write_page
from lsgd.search.space import SearchSpace
from lsgd.search.trial import FAILED, FINISHED, PRUNED, RUNNING, Trial, best_trial

NOON = datetime(2026, 1, 1, 12)


def point(number: int, value: float | None, state: str = FINISHED, **changed: object) -> Trial:
    """It takes a minute, one after the other."""
    began = NOON + timedelta(minutes=number)
    fields = {
        "values": {"schedule.reference_lr": 10.0 ** -(number % 4), "model.hidden": 30 * (1 + number % 2)},  # noqa: E501
        "reported": {1: 50.0, 2: 40.0} if state == FINISHED else {1: 60.0},
        "why": "diverged in epoch 2 of 2" if state == FAILED else "",
        "began": began, "ended": began + timedelta(minutes=1),
    }  # fmt: skip
    return Trial(number, state=state, value=value, **(fields | changed))  # type: ignore[arg-type]


POINTS = [
    point(0, 20.0), point(1, None, PRUNED), point(2, 12.0), point(3, None, FAILED), point(4, 15.0),
    point(5, 18.0),
]  # fmt: skip
RECORD = SearchRecord(
    "one", "Of one", "python -m lsgd.search +search=one", "tpe", 6, 2, TOP1, POINTS,
    best=[10.0, 12.0], default=[20.0, 15.0], start={"torch": "2.13", "device": "a CPU"},
)  # fmt: skip


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    running = replace(point(6, None), state=RUNNING, ended=None, reported={})
    record = replace(RECORD, points=[*POINTS, running])
    save_record(record, tmp_path)
    assert load_record(tmp_path) == record


def test_the_best_is_a_finished_one_with_the_lowest_value() -> None:
    assert best_trial(POINTS) == POINTS[2]
    assert best_trial([POINTS[1], POINTS[3]]) is None


def test_the_reduction_is_of_each_seed() -> None:
    """Half of 20 and a fifth of 15: their mean, and not that of the means."""
    mean, std = relative_improvement(RECORD)
    assert mean == pytest.approx((0.5 + 0.2) / 2)
    assert std == pytest.approx(0.3 / math.sqrt(2))


def test_time_is_that_in_which_a_point_was_at_work() -> None:
    """Two at a time count once, and a night between two commands not at all."""
    assert RECORD.busy_seconds == 360
    later = NOON + timedelta(hours=10)
    beside = point(6, 1.0, began=NOON, ended=NOON + timedelta(seconds=90))
    next_day = point(7, 1.0, began=later, ended=later + timedelta(minutes=2))
    inside = point(8, 1.0, began=later, ended=later + timedelta(minutes=1))
    record = replace(RECORD, points=[*POINTS, inside, next_day, beside])
    assert record.busy_seconds == 480


def test_a_pause_within_a_trial_is_no_work(
    composed_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted on one day and killed on the next, and ends on a third."""
    monkeypatch.chdir(tmp_path)
    what = Search("one", "One", "digits", {"workers": {"choices": [1, 2]}}, trials=1)
    space = SearchSpace(what, [])
    minutes = {"start": 0, "end": 2, "resumed": 600, "rerun": 1200, "done": 1203}
    at = {name: NOON + timedelta(minutes=number) for name, number in minutes.items()}
    trial = point(0, 9.0, values={"workers": 2}, began=at["start"], ended=at["done"])
    assert make_record(space, [trial], "one", "").busy_seconds == 1203 * 60
    [run] = space.planned_runs(trial.values, [0])
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(config.to_yaml(run.recipe))
    earlier = [("start", NOON - timedelta(days=1)), ("end", NOON - timedelta(hours=23))]
    events = [*earlier, ("start", at["start"]), ("note", at["start"]), ("end", at["end"])]
    events += [("start", at["resumed"]), ("start", at["rerun"]), ("end", at["done"])]
    lines = [{"time": when.astimezone().isoformat(), "event": name} for name, when in events]
    log = run.folder / "supervise.log"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # The start that was killed had made ten steps of 6 s, after 30 s of preparation.
    begin = at["resumed"] + timedelta(seconds=30)
    rows = [
        {"kind": "start", "step": 20, "time": begin.astimezone().isoformat()},
        {"kind": "epoch", "step": 30, "epoch": 1, "val_top1_error": 9.0, "step_seconds": 6.0},
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = make_record(space, [trial], "one", "")
    assert record.busy_seconds == record.trial_seconds == 120 + 90 + 180
    save_record(record, tmp_path)
    assert load_record(tmp_path) == record
    # The last start was killed too, before its first epoch.
    log.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    assert make_record(space, [trial], "one", "").busy_seconds == 120 + 90
    # Another search had trained this run before, which is none of this trial's work.
    lines = [{"time": when.astimezone().isoformat(), "event": name} for name, when in earlier]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert make_record(space, [trial], "one", "").busy_seconds == 1203 * 60


@pytest.mark.slow
def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    write_page([RECORD], tmp_path, "the command")
    page = (tmp_path / "README.md").read_text()
    for part in (
        "6 trials of 6: 4 finished, 1 pruned, 1 failed.",
        "Best: reference_lr 0.01, hidden 30, top-1 error 12.00 %.",
        "| one: reference_lr 0.01, hidden 30 |     17.50 ± 3.54 | 11.00 ± 1.41 | 35.0 ± 21.2 % |",
        "|   1 | 0.01 | 30 | 12.00 |",
        "8 %", "6 min", "60", "1.0", "diverged in epoch 2 of 2", "torch 2.13, device a CPU",
    ):  # fmt: skip
        assert "".join(part.split()) in "".join(page.split()), part
    tree = ET.fromstring((tmp_path / "index.html").read_text().partition("\n")[2])
    assert len(tree.findall(".//svg")) == 2
    for figure in ("best", "values"):
        assert (tmp_path / f"{figure}.svg").stat().st_size > 5000
    assert "hidden 30" in (tmp_path / "values.svg").read_text()


@pytest.mark.slow
def test_several_searches_make_one_page(tmp_path: Path) -> None:
    for name, sampler in (("a", "tpe"), ("b", "tpe"), ("c", "random")):
        (tmp_path / name).mkdir()
        save_record(replace(RECORD, name=name, sampler=sampler), tmp_path / name)
    folders = [str(tmp_path / name) for name in "abc"]
    assert main(["--report", *folders, "--out", str(tmp_path / "out")]) == 0
    assert "18 trials of 18" in (tmp_path / "out/README.md").read_text()
    assert "tpe, 2 searches" in (tmp_path / "out/best.svg").read_text()
    assert main(["--report", *folders, "--out", str(tmp_path / "out")]) == 2


@pytest.mark.parametrize("points", [[], [POINTS[1]], [POINTS[0]], [POINTS[3], POINTS[3]]])
def test_a_search_that_has_found_little_has_a_page_too(points: list[Trial], tmp_path: Path) -> None:
    write_page([replace(RECORD, points=points, best=[], default=[])], tmp_path, "the command")
    page = ET.fromstring((tmp_path / "index.html").read_text().partition("\n")[2])
    assert page.find(".//h1") is not None


@pytest.mark.slow
@pytest.mark.parametrize("lowest", [0.0, -3.0])
def test_a_value_of_0_or_less_has_a_page_and_no_share(lowest: float, tmp_path: Path) -> None:
    points = [point(n, value) for n, value in enumerate((9.0, lowest, 2.0, lowest, 5.0, 4.0))]
    record = replace(RECORD, points=points, best=[lowest, 1.0], default=[lowest, 2.0])
    assert all(map(math.isnan, relative_improvement(record)))
    write_page([record], tmp_path, "the command")
    assert "less by" in (tmp_path / "README.md").read_text()
    for figure in ("best", "values"):
        assert (tmp_path / f"{figure}.svg").stat().st_size > 5000


def test_choices_of_numbers_and_text_are_drawn_and_read_as_categories(tmp_path: Path) -> None:
    """Such as `choices: ['null', 0.5, 1.0]` of a field that may be left out."""
    clip, lr = "optim.clip_norm", "schedule.reference_lr"
    choices = [0.5, 1.0, "null"]
    points = [point(n, 3.0 + n, values={clip: choices[n % 3], lr: 0.1 * n}) for n in range(6)]
    record = replace(RECORD, points=points)
    numbers = replace(record, points=points[:2])
    save_record(record, tmp_path)
    assert load_record(tmp_path) == record
    check_comparable([tmp_path, tmp_path], [numbers, record])
    figure = _against([record, numbers])
    assert figure
    assert f"against {lr}" in figure.title
    assert f"against {lr}" in figure.title
    assert "clip_norm null" in figure.svg
    alone = [replace(p, values={clip: p.values[clip]}) for p in points]
    assert _against([replace(record, points=alone)]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"points": [point(0, 3.0, values={"optim.momentum": 0.9})]},
            "varies model.hidden, schedule.reference_lr and the second optim.momentum",
        ),
        (
            {"points": [point(0, 3.0, values={"schedule.reference_lr": 0.1, "model.hidden": "a"})]},
            "and the second values of other kinds",
        ),
        ({"metric": METRICS["perplexity"]}, "minimises top1_error and the second perplexity"),
    ],
)
def test_searches_that_cannot_be_compared_have_no_common_page(
    changed: dict[str, object], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One without a finished trial names no metric and no field yet, and fits on any page."""
    begun = replace(RECORD, points=[], best=[], default=[])
    for name, record in (("a", RECORD), ("b", begun), ("c", replace(RECORD, **changed))):
        (tmp_path / name).mkdir()
        save_record(replace(record, name=name), tmp_path / name)
    a, b, c, out = (str(tmp_path / name) for name in ("a", "b", "c", "out"))
    assert main(["--report", a, b, c, "--out", out]) == 2
    said = capsys.readouterr().err
    assert f"{a} and {c} do not fit on one page: the first " in said
    assert why in said
    assert main(["--report", b, c, "--out", out]) == 0
