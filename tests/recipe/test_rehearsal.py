"""A rehearsal keeps the lr and the steps of its recipe, and says what it replaces."""

from fractions import Fraction

import pytest
from helpers.base_recipe import BASE, field_values, with_fields
from helpers.composed import compose_recipe
from hypothesis import example, given
from hypothesis import strategies as st

from lsgd.recipe import Target
from lsgd.recipe.checks import check_recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.rules.schedule import is_reached

ratios = st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=100).map(float)


@given(
    st.integers(1, 300), st.integers(2, 100), st.integers(1, 5000), st.integers(1, 5000),
    st.sampled_from(["linear", "sqrt", "none"]), st.sampled_from(["gradual", "constant", "none"]),
)  # fmt: skip
@example(1, 49, 49, 1, "linear", "gradual")
def test_rehearsal_keeps_the_lr_of_every_step(
    workers: int, n: int, reference_batch: int, examples: int, scaling: str, warmup: str
) -> None:
    recipe = with_fields(
        BASE, workers=workers, worker_batch=n, data__train_examples=workers * n * 3 + examples,
        schedule__reference_batch=float(reference_batch), schedule__scaling=scaling,
        schedule__warmup=warmup, rehearse=True,
    )  # fmt: skip
    small = make_dry_run(recipe)
    check_recipe(small)
    assert (small.workers, small.worker_batch) == (workers, 2)
    assert (small.steps_per_epoch, small.epochs) == (recipe.steps_per_epoch, recipe.epochs)
    assert (small.batch_size > small.schedule.reference_batch) == (workers * n > reference_batch)
    for step in [s for _, steps in small.epochs_from(0) for s in steps]:
        assert small.lr(step) == pytest.approx(recipe.lr(step), rel=1e-14)


@given(st.integers(1, 40), ratios, ratios)
@example(25, 2.2, 1.0)  # 2.2 x 25 is a little more than 55
@example(25, 1.08, 0.28)  # 1 + 9 / 25 is a little less than 1.36
def test_rehearsal_makes_six_steps(steps: int, warmup: float, later: float) -> None:
    """Those of the first epoch at or after mid-warmup, its end and the drop, for any fraction."""
    drop = warmup + later
    recipe = make_dry_run(
        with_fields(
            BASE, data__train_examples=8192 * steps, schedule__warmup_epochs=warmup,
            schedule__milestones=[drop], rehearse=True,
        )
    )  # fmt: skip
    run = range(recipe.total_steps)
    middle, end, dropped = (
        next(s for s in run if is_reached(recipe.epoch(s), epoch))
        for epoch in (warmup / 2, warmup, drop)
    )
    found = list(recipe.epochs_from(0))
    assert [s for _, each in found for s in each] == sorted(
        {0, 1, middle, end, dropped - 1, dropped}
    )
    assert all(s // steps == epoch for epoch, each in found for s in each)
    assert recipe.lr(end) > recipe.lr(end - 1) or end == dropped
    assert recipe.lr(dropped) < recipe.lr(dropped - 1) or end == dropped


def test_rehearsal_resumes() -> None:
    recipe = make_dry_run(with_fields(BASE, rehearse=True))
    steps = [s for _, each in recipe.epochs_from(0) for s in each]
    assert steps == [0, 1, 390, 780, 4679, 4680]
    assert list(recipe.epochs_from(781)) == [(29, [4679]), (30, [4680])]


def test_rehearsal_prints_every_replacement() -> None:
    recipe = with_fields(
        BASE,
        tail="keep",
        target=Target(23.74),
        evaluation__sets=["val", "v2"],
        precision="bfloat16",
        optim__head_lr=0.2,
    )
    small = make_dry_run(recipe)
    before, after = field_values(recipe), field_values(small)
    text = "\n".join(small.replaced)
    assert text in small.summary()
    assert "precision=bfloat16, optim.head_lr=0.2\n" in small.summary()
    said = {
        "worker_batch": "worker_batch 32 -> 2",
        "schedule.reference_batch": "schedule.reference_batch 256 -> 16",
        "model.name": "model resnet50 -> small_resnet",
        "inputs.loader": "data imagenet -> synthetic images",
        "data.image_size": "of 32 x 32",
        "data.train_examples": "80384 to train",
        "data.val_examples": "64 to validate",
        "data.augmentation": "augmentation crop_flip -> none",
        "evaluation.sets": "evaluation.sets val,v2 -> val",
    }
    described = {"replaced", "target", "log_steps"}
    assert {key for key in before if before[key] != after[key]} == {*said, *described}
    assert all(phrase in text for phrase in said.values())
    assert small.target is None


def test_a_strategy_is_rehearsed_as_it_is() -> None:
    servers = with_fields(BASE, strategy__name="sync", rehearse=True)
    assert make_dry_run(servers).strategy == servers.strategy
    assert make_dry_run(servers).workers == servers.workers


@pytest.mark.parametrize("words", [[], ["workers=3", "worker_batch=7", "data.window=9"]])
def test_a_text_is_rehearsed_with_its_windows(words: list[str]) -> None:
    """As many steps of as many tokens of each stream, at the same lr."""
    recipe = compose_recipe("+recipe=ptb_small", *words)
    small = make_dry_run(recipe)
    check_recipe(small)
    assert (small.workers, small.worker_batch) == (recipe.workers, 2)
    assert (small.data.window, small.steps_per_epoch) == (
        recipe.data.window,
        recipe.steps_per_epoch,
    )
    assert [small.lr(step) for step in range(99)] == [recipe.lr(step) for step in range(99)]
    assert "model lstm -> the same of 8 units" in small.summary()
