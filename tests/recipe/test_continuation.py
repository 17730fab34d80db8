"""A run goes on to more epochs only if its past would have been the same with them."""

import re

import pytest
from helpers.composed import compose_recipe

from lsgd.recipe import Recipe
from lsgd.recipe.continuation import is_longer_run, past_difference

TWO = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5"]
SMOOTH = ["schedule.milestones=[]", "schedule.end_lr=0.001"]


def recipe(*words: str) -> Recipe:
    return compose_recipe("+recipe=digits", *TWO, *words)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([], ["schedule.milestones=[1,3]"]),
        ([], ["schedule.milestones=[1,2]", "schedule.factors=[0.1,0.5]"]),
        (["schedule.milestones=[]"], []),  # as in the middle of a run, after epoch 1
        ([*SMOOTH, "schedule=cosine"], [*SMOOTH, "schedule=cosine", "schedule.decay_steps=10"]),
        (["evaluation.every=2"], ["evaluation.every=2"]),
        (["evaluation.every=0.5"], ["evaluation.every=3 steps"]),
        (["stop.patience=1"], ["stop.patience=1"]),
        (
            ["strategy=async", "strategy.local_steps=3"],
            ["strategy=async", "strategy.local_steps=3"],
        ),
    ],
)
def test_an_equal_past_goes_on(before: list[str], after: list[str]) -> None:
    earlier, longer = recipe(*before), recipe("epochs=4", *after)
    assert is_longer_run(longer, earlier)
    made = earlier.first_step(1 if before == ["schedule.milestones=[]"] else 2)
    assert past_difference(longer, earlier, made) == ""
    assert [longer.lr(step) for step in range(made)] == [earlier.lr(step) for step in range(made)]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (["schedule.milestones=[]"], [], "step 5 had lr 0.4, and would have had 0.04 with "),
        ([], ["schedule.milestones=[2]"], "decay=steps over 4 epochs"),
        ([], ["schedule.gamma=0.2"], "step 5 had lr 0.04, and would have had 0.08 with "),
        ([], ["schedule.warmup_epochs=1"], "step 2 had lr 0.325, "),
        ([*SMOOTH, "schedule=cosine"], [*SMOOTH, "schedule=cosine"], "decay=cosine over 4 epochs"),
        ([*SMOOTH, "schedule=linear"], [*SMOOTH, "schedule=linear"], "decay=linear over 4 epochs"),
        (["evaluation.every=3"], ["evaluation.every=3"], "epoch 2 was evaluated as the last"),
    ],
)
def test_another_past_is_named(before: list[str], after: list[str], why: str) -> None:
    earlier, longer = recipe(*before), recipe("epochs=4", *after)
    assert is_longer_run(longer, earlier)
    assert why in past_difference(longer, earlier, earlier.total_steps)


POINTS = [
    *("epochs=2", "schedule=points", "schedule.points=[[0,0.1],[2,0]]"),
    *("schedule.milestones=[]", "schedule.warmup=none", "schedule.scaling=none"),
]
LATER = ["epochs=4", "schedule.points=[[0,0.1],[2,0],[2,0.4],[4,0]]"]


@pytest.mark.parametrize(
    ("words", "after", "why"),
    [
        ([], LATER, ""),
        (["optim.decay=decoupled"], LATER, "relative to the full lr, which was 0.1, and .* 0.4"),
        (["optim.decay=decoupled"], [LATER[0], LATER[1].replace("0.4", "0.1")], ""),
        (
            ["schedule.reference_lr=0.1", "optim.head_lr=0.4"],
            ["schedule.reference_lr=0.2"],
            "optim.head_lr=0.4 is relative to schedule.reference_lr, which was 0.1, and .* 0.2",
        ),
    ],
)
def test_a_scale_of_all_steps_is_that_of_the_past(
    words: list[str], after: list[str], why: str
) -> None:
    """By which equal lrs are other steps: of a later, higher lr, or of the last layer's."""
    base = ["+recipe=digits", *(TWO if "optim.head_lr=0.4" in words else POINTS), *words]
    earlier, longer = compose_recipe(*base), compose_recipe(*base, "epochs=4", *after)
    assert is_longer_run(longer, earlier)
    found = past_difference(longer, earlier, earlier.total_steps)
    assert re.search(why, found) if why else not found
    # A run without a step has no past.
    assert past_difference(longer, earlier, 0) == ""


def test_each_local_step_before_a_push_has_its_own_lr() -> None:
    """A drop between two pushes that moves between the same two is found."""
    local = ["strategy=async", "strategy.local_steps=3"]
    steps = recipe(*local).steps_per_epoch
    early, late = (f"schedule.milestones=[{1 + part / steps}]" for part in (0.2, 0.5))
    longer, earlier = recipe("epochs=4", *local, early), recipe(*local, late)
    assert past_difference(longer, earlier, earlier.total_steps).startswith(
        f"step {steps + 1 / 3:g} had lr"
    )


@pytest.mark.parametrize(
    "word",
    [
        "epochs=2",
        "seed=1",
        "label_smoothing=0.1",
        "data.augmentation=shift_flip",
        "rehearse=true",
        "stop.patience=1",
    ],
)
def test_any_other_run_is_no_longer_one(word: str) -> None:
    assert not is_longer_run(recipe("epochs=4", word), recipe())


def test_execution_may_differ() -> None:
    assert is_longer_run(recipe("epochs=4", "workers_per_pass=2", "strategy=sync"), recipe())
