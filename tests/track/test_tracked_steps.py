"""What a tracker gets of the rows of a run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd.run.read import Run
from lsgd.run.rows import Row
from lsgd.track.steps import tracked_steps

RECIPE = compose_recipe(
    "+recipe=digits", "epochs=2", "schedule.milestones=[]", "schedule.warmup=none"
)
STEPS = RECIPE.steps_per_epoch
KN = RECIPE.batch_size
START = {"kind": "start", "step": 0, "time": "2026-11-24T01:00:00+00:00"}
BEGIN = 1795482000.0


def train(step: int, **values: object) -> Row:
    return {"kind": "train", "step": step, "epoch": 0.2, "loss": 1.0, **values}


def epoch(number: int, **values: object) -> Row:
    row = {"kind": "epoch", "step": number * STEPS, "epoch": number, "val_top1_error": 9.0}
    return row | values


def run(*rows: Row) -> Run:
    return Run(Path("a"), RECIPE, [START, *rows])


def test_each_step_has_its_numbers_and_the_axes() -> None:
    rows = [
        train(2, lr=0.1, gradient_norm=None, staleness=[3, 1], note="x", settled=True),
        {"kind": "warning", "step": 2, "text": "a full disk"},
        train(STEPS),
        epoch(1),
    ]
    one, two = tracked_steps(run(*rows))
    axes = {"epoch": 2 / STEPS, "examples": 2 * KN}
    assert (one.number, one.values) == (2, axes | {"steps/loss": 1.0, "steps/lr": 0.1})
    both = {"steps/loss": 1.0, "epochs/val_top1_error": 9.0}
    assert (two.number, two.values) == (STEPS, {"epoch": 1.0, "examples": STEPS * KN} | both)


def test_a_row_at_the_end_of_an_epoch_waits_for_that_of_the_epoch() -> None:
    """A tracker that has the step would not take the second row."""
    assert [step.number for step in tracked_steps(run(train(2), train(STEPS)))] == [2]
    assert [step.number for step in tracked_steps(run(train(2), train(STEPS - 1)))] == [
        2,
        STEPS - 1,
    ]
    over = {"kind": "diverged", "step": STEPS, "text": "loss is nan"}
    assert [step.number for step in tracked_steps(run(train(STEPS), over))] == [STEPS]


def test_a_row_before_an_evaluation_within_an_epoch_waits_for_that_of_the_evaluation() -> None:
    made = replace(RECIPE, evaluation=replace(RECIPE.evaluation, every="2 steps"))
    evaluation = {"kind": "evaluation", "step": 2, "epoch": 0.4, "val_loss": 1.5}
    assert tracked_steps(replace(run(train(2)), recipe=made)) == []
    (step,) = tracked_steps(replace(run(train(2), evaluation), recipe=made))
    assert step.values == {
        "epoch": 2 / STEPS, "examples": 2 * KN, "steps/loss": 1.0, "evaluations/val_loss": 1.5,
    }  # fmt: skip


def test_the_end_of_an_epoch_of_a_rehearsal_is_where_it_makes_one() -> None:
    recipe = compose_recipe("+recipe=digits", "rehearse=true")
    (_, steps), *_ = recipe.epochs_from(0)
    rehearsed = replace(run(train(steps[-1] + 1)), recipe=recipe)
    assert tracked_steps(rehearsed) == []
    assert len(tracked_steps(replace(rehearsed, rows=[START, train(steps[0] + 1)]))) == 1


def test_the_number_of_a_run_is_at_its_last_step() -> None:
    rows = [train(1), epoch(1, val_top1_error=12.0)]
    assert "outcome" not in tracked_steps(run(*rows))[-1].values
    assert tracked_steps(run()) == []
    *_, last = tracked_steps(run(*rows, epoch(2, val_top1_error=8.0)))
    assert last.values["outcome"] == 10.0  # the median


def test_a_run_that_never_reached_its_target_has_no_outcome() -> None:
    recipe = replace(RECIPE, metric=replace(RECIPE.metric, epochs_to={"top1_error": 1.0}))
    made = replace(run(epoch(1), epoch(2)), recipe=recipe)
    assert math.isinf(made.final_metric)
    assert "outcome" not in tracked_steps(made)[-1].values


def test_times_are_those_of_steps_whatever_the_speed_counts() -> None:
    """A sentence of 14 tokens is one example."""
    cost = {"step_seconds": 3.0, "tokens_per_second": 14 * KN / 3.0}
    steps = tracked_steps(run(train(2, **cost), train(4, **cost)))
    assert [step.time for step in steps] == pytest.approx([BEGIN + 6, BEGIN + 12], abs=1e-6)


def test_times_are_those_of_starts_and_speeds() -> None:
    speed = {"images_per_second": KN / 2}
    rows = [
        train(2, **speed),
        train(4, images_per_second=None),
        START | {"step": 4, "time": "2026-11-24T02:00:00+00:00"},
        train(6, **speed),
    ]
    times = [step.time for step in tracked_steps(run(*rows))]
    assert times == pytest.approx([BEGIN + 4, BEGIN + 4, BEGIN + 3604], abs=1e-6)
