"""Schedules at the bounds that the checks leave: each step of an accepted recipe has an lr."""

import math
from dataclasses import replace

import pytest
from helpers.base_recipe import BASE
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.recipe import Schedule
from lsgd.recipe.checks import check_recipe
from lsgd.rules.schedule import DECAYS, WARMUPS

EPOCHS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
STEPS = BASE.steps_per_epoch


@given(
    decay=st.sampled_from(DECAYS),
    warmup=st.sampled_from(WARMUPS),
    warmup_epochs=EPOCHS,
    decay_steps=st.sampled_from([None, 1, STEPS, 2 * STEPS, 2 * STEPS - 1, 4 * STEPS, 5 * STEPS]),
    milestones=st.lists(EPOCHS, max_size=2),
)
def test_an_accepted_schedule_has_an_lr_at_every_step(
    decay: str, warmup: str, warmup_epochs: float, decay_steps: int | None, milestones: list[float]
) -> None:
    rule = replace(
        BASE.schedule, decay=decay, warmup=warmup, warmup_epochs=warmup_epochs,
        decay_steps=decay_steps, milestones=milestones,
        points=[[0.0, 0.1], [2.0, 0.2], [2.0, 0.05], [4.0, 0.0]] if decay == "points" else [],
        scaling="none" if decay == "points" else "linear",
    )  # fmt: skip
    recipe = replace(BASE, epochs=4, schedule=rule)
    try:
        check_recipe(recipe)
    except UsageError:
        return
    rates = [recipe.lr(step) for step in range(recipe.total_steps)]
    assert all(math.isfinite(rate) and 0 <= rate <= recipe.scaled_lr for rate in rates)


def test_a_decay_that_ends_with_its_warmup_is_over_after_it() -> None:
    ends = replace(BASE, epochs=4, schedule=polynomial(2.0, 2 * STEPS))
    check_recipe(ends)
    assert ends.lr(2 * STEPS) == pytest.approx(ends.scaled_lr)
    assert ends.lr(2 * STEPS + 1) == ends.schedule.end_lr


def polynomial(warmup_epochs: float, decay_steps: int) -> Schedule:
    return replace(
        BASE.schedule, decay="polynomial", warmup="gradual", warmup_epochs=warmup_epochs,
        decay_steps=decay_steps, milestones=[],
    )  # fmt: skip


def test_local_steps_before_a_push_do_not_scale_the_lr() -> None:
    """It is that of a step's examples, and not of the update's four steps."""
    one = replace(BASE, strategy=replace(BASE.strategy, name="async"))
    four = replace(one, strategy=replace(one.strategy, local_steps=4))
    assert four.batch_size == 4 * one.batch_size
    assert four.scaled_lr == one.scaled_lr == four.lr(four.first_step(10))
