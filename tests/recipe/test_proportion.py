"""A number of epochs that is refused by itself comes with the words with which it is not."""

import json
from dataclasses import replace

import pytest
from helpers.base_recipe import BASE, with_fields
from helpers.composed import compose_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from lsgd.config import load_recipe, sorted_recipe_names
from lsgd.errors import UsageError
from lsgd.recipe.checks import check_recipe
from lsgd.recipe.epoch_scaling import scale_epochs


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        (3, "epochs=3 schedule.milestones=[1,2] schedule.warmup_epochs=0.17"),
        (2, "epochs=2 schedule.milestones=[1] schedule.warmup_epochs=0.11"),
        (1, "epochs=1 schedule.milestones=[] schedule.warmup_epochs=0.056"),
        (180, "epochs=180 schedule.milestones=[60,120,160] schedule.warmup_epochs=10"),
        (90, ""),
    ],
)
def test_the_schedule_of_the_paper(epochs: int, words: str) -> None:
    assert " ".join(scale_epochs(BASE, epochs)) == words


def test_what_goes_with_a_milestone_goes_with_it() -> None:
    """Of two that fall together the later share of the lr holds, as it would behind both."""
    four = {"schedule__milestones": [30, 60, 61, 80]}
    shares = with_fields(BASE, **four, schedule__factors=[0.5, 0.2, 0.1, 0.01])
    assert scale_epochs(shares, 9) == [
        "epochs=9", "schedule.milestones=[3,6,8]", "schedule.factors=[0.5,0.1,0.01]",
        "schedule.warmup_epochs=0.5",
    ]  # fmt: skip
    grown = with_fields(BASE, batch_growth__milestones=[30, 60], workers=8)
    assert scale_epochs(replace(grown, epochs=90), 30)[-1] == "batch_growth.milestones=[10,20]"


def test_a_decay_ends_in_proportion_and_no_warmup_is_none() -> None:
    smooth = with_fields(
        BASE, schedule__decay="linear", schedule__milestones=[], schedule__decay_steps=9_000_000,
        schedule__warmup="none",
    )  # fmt: skip
    assert scale_epochs(smooth, 30) == ["epochs=30", "schedule.decay_steps=3000000"]


def test_a_warmup_ends_before_a_drop_that_was_rounded_down() -> None:
    late = with_fields(BASE, schedule__milestones=[14.0], schedule__warmup_epochs=14.0)
    assert scale_epochs(late, 9) == [
        "epochs=9", "schedule.milestones=[1]", "schedule.warmup_epochs=1"
    ]  # fmt: skip


def test_phases_that_are_not_of_the_lr_end_in_proportion() -> None:
    """A tenth of the run would all be augmented, or updated by RMSprop, otherwise."""
    fujitsu, akiba = (
        compose_recipe(f"+recipe={name}") for name in ("fujitsu_bs86016", "akiba_bs32k")
    )
    assert "data.augmented_epochs=8" in scale_epochs(fujitsu, 9)
    assert {"optim.beta_center=1", "optim.beta_period=0.5"} < {*scale_epochs(akiba, 9)}


@pytest.mark.slow
def test_every_published_recipe_takes_the_words() -> None:
    """Those words are accepted, wherever the number of epochs alone is or is not."""
    for name in sorted_recipe_names():
        recipe = compose_recipe(f"+recipe={name}")
        for epochs in (*range(1, 12), 29, 30, 31, 45, 89, 90, 91, 200):
            words = (word.split("=") for word in scale_epochs(recipe, epochs))
            values = {key.replace(".", "__"): json.loads(value) for key, value in words}
            check_recipe(with_fields(recipe, **values))


@pytest.mark.slow
@settings(max_examples=4)
@given(st.sampled_from(sorted_recipe_names()), st.integers(1, 200))
def test_what_is_printed_is_accepted(name: str, epochs: int) -> None:
    try:
        load_recipe([f"+recipe={name}", f"epochs={epochs}"])
    except UsageError as refusal:
        _, _, words = str(refusal).partition("; in proportion write ")
        assert load_recipe([f"+recipe={name}", *words.split()]).epochs == epochs


def test_words_of_the_user_stay_or_are_moved_too() -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe(["+recipe=bs8k", "schedule.milestones=[45]", "epochs=9", "seed=4"])
    assert str(refused.value) == (
        "schedule.milestones=[45] has 45, which is outside a run of 9 epochs; in proportion write "
        "epochs=9 schedule.milestones=[4] schedule.warmup_epochs=0.5"
    )


@pytest.mark.parametrize(
    "words", ["epochs=0", "epochs=x", "epochs=3 workers=0", "schedule.milestones=[99]"]
)
def test_what_other_words_make_wrong_is_said_as_before(words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe(["+recipe=bs8k", *words.split()])
    assert "in proportion" not in str(refused.value)
