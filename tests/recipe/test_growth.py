"""A batch that grows: its stages, what is counted over them, the lr, and what is refused."""

import math

import pytest
from helpers.base_recipe import BASE, with_fields
from helpers.composed import compose_recipe
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.plan.__main__ import main as plan
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_recipe, check_world_size
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.epoch_scaling import scale_epochs
from lsgd.rules import schedule
from lsgd.rules.metric import METRICS

SMITH = ("+recipe=fashion_bs64", "batch_growth.milestones=[5,7]", "batch_growth.factor=10")


@st.composite
def growing(draw: st.DrawFn) -> Recipe:
    """A run of 12 epochs whose batch grows at some of them, or never."""
    milestones = sorted(draw(st.sets(st.integers(1, 11), max_size=3)))
    return with_fields(
        BASE,
        epochs=12,
        workers=draw(st.integers(1, 5)),
        worker_batch=draw(st.integers(2, 9)),
        tail=draw(st.sampled_from(["keep", "drop"])),
        data__train_examples=draw(st.integers(1300, 3000)),
        schedule__milestones=[5.0, 8.0],
        schedule__warmup_epochs=2.0,
        schedule__reference_batch=8.0,
        batch_growth__milestones=milestones,
        batch_growth__factor=draw(st.integers(2, 3)),
    )


@st.composite
def phased(draw: st.DrawFn) -> Recipe:
    """A run of 12 epochs whose minibatch changes up and down at some of them."""
    epochs = sorted(draw(st.sets(st.integers(1, 11), min_size=1, max_size=4)))
    sizes = [(draw(st.integers(1, 7)), draw(st.integers(2, 12))) for _ in epochs]
    return with_fields(
        draw(growing()),
        batch_growth__milestones=[],
        batch_growth__factor=2,
        batch_schedule=[[epoch, *size] for epoch, size in zip(epochs, sizes, strict=True)],
    )


def test_by_value() -> None:
    """64 images in a step, then 640, then 6400, of 60,000."""
    recipe = compose_recipe(*SMITH)
    rows = [
        (s.epoch, s.workers, s.batch_size, s.steps_per_epoch, s.steps_before) for s in recipe.stages
    ]
    assert rows == [(0, 2, 64, 937, 0), (5, 20, 640, 93, 4685), (7, 200, 6400, 9, 4871)]
    assert recipe.total_steps == 5 * 937 + 2 * 93 + 2 * 9
    assert [recipe.locate_step(step) for step in (0, 4684, 4685, 4870, 4871, 4889)] == [
        (0, 0), (4, 936), (5, 0), (6, 92), (7, 0), (9, 0),
    ]  # fmt: skip
    assert recipe.epoch(4685 + 93 / 2) == 5.5
    assert recipe.examples(4685) == 5 * 937 * 64
    assert recipe.examples(4871 + 3) == 5 * 937 * 64 + 2 * 93 * 640 + 3 * 6400


@pytest.mark.slow
@given(st.one_of(growing(), phased()))
def test_steps_make_up_the_epochs(recipe: Recipe) -> None:
    """Each step has its place, in order, and the examples are those that the steps have."""
    epochs = list(recipe.epochs_from(0))
    assert [epoch for epoch, _ in epochs] == list(range(12))
    assert [s for _, steps in epochs for s in steps] == list(range(recipe.total_steps))
    examples = 0
    for epoch, steps in epochs:
        stage, left = recipe.stage(epoch), recipe.train_examples
        assert recipe.first_step(epoch) == steps[0]
        for number, step in enumerate(steps):
            assert recipe.locate_step(step) == (epoch, number)
            assert recipe.epoch(step) == pytest.approx(epoch + number / len(steps), abs=1e-12)
            assert recipe.examples(step) == examples
            examples += min(stage.batch_size, left)
            left -= stage.batch_size
        # The tail is a step, or there are fewer examples left than one has.
        assert left <= 0 if recipe.keeps_tail else 0 <= left < stage.batch_size
    assert recipe.examples(recipe.total_steps) == examples


@given(growing())
def test_the_lr_is_that_of_the_first_batch(recipe: Recipe) -> None:
    rule = recipe.schedule
    for step in range(0, recipe.total_steps, 7):
        assert recipe.lr(step) == schedule.learning_rate(
            recipe.epoch(step),
            batch_size=recipe.workers * recipe.worker_batch,
            reference_lr=rule.reference_lr,
            reference_batch=rule.reference_batch,
            warmup_epochs=rule.warmup_epochs,
            milestones=rule.milestones,
        )


def test_a_smooth_decay_goes_by_the_steps_that_are_made() -> None:
    words = ("schedule.decay=polynomial", "schedule.milestones=[]", "schedule.power=1")
    recipe = compose_recipe(*SMITH, *words)
    assert recipe.total_steps == 4889
    assert recipe.lr(4889 // 2) == pytest.approx(recipe.lr(0) / 2, rel=1e-3)
    assert recipe.lr(4888) == pytest.approx(recipe.lr(0) / 4889, rel=1e-9)


@given(phased())
def test_the_lr_of_a_phase_is_that_of_its_minibatch(recipe: Recipe) -> None:
    """That of a run of this minibatch at the same epoch, without a warmup up to the reference."""
    for step in range(0, recipe.total_steps, 7):
        stage, epoch = recipe.stage(recipe.epoch(step)), recipe.epoch(step)
        assert recipe.lr(step) == schedule.learning_rate(
            epoch, batch_size=stage.workers * stage.worker_batch,
            reference_batch=recipe.schedule.reference_batch, warmup_epochs=2.0,
            milestones=[5.0, 8.0],
        )  # fmt: skip


def test_the_phases_of_fast_ai_on_128_gpus() -> None:
    """Each has its minibatch of images of BN too; a kept tail makes 157 steps of 8192 images."""
    recipe = compose_recipe(
        "+recipe=bs256", "workers=128", "worker_batch=64", "tail=keep", "epochs=50",
        "schedule.milestones=[]",
        "batch_schedule=[[6,128,128],[16,128,64],[19,128,192],[37,128,128]]",
    )  # fmt: skip
    assert [(s.epoch, s.batch_size, s.steps_per_epoch) for s in recipe.stages] == [
        (0, 8192, 157), (6, 16384, 79), (16, 8192, 157), (19, 24576, 53), (37, 16384, 79),
    ]  # fmt: skip
    assert recipe.most_processes == 128
    assert "batch_size 24576 = 128 workers x 192 from epoch 19 on" in recipe.summary()
    assert scale_epochs(recipe, 25)[-1] == (
        "batch_schedule=[[3,128,128],[8,128,64],[10,128,192],[18,128,128]]"
    )


@given(st.one_of(growing(), phased()))
def test_a_rehearsal_has_its_steps_and_is_on_each_side(recipe: Recipe) -> None:
    small = make_dry_run(recipe)
    assert [stage.steps_per_epoch for stage in small.stages] == [
        stage.steps_per_epoch for stage in recipe.stages
    ]
    assert [stage.workers for stage in small.stages] == [s.workers for s in recipe.stages]
    made = {s for _, steps in with_fields(small, rehearse=True).epochs_from(0) for s in steps}
    for stage in recipe.stages[1:]:
        assert {stage.steps_before - 1, stage.steps_before} <= made
    for step in made:
        assert math.isclose(small.lr(step), recipe.lr(step), rel_tol=1e-12)


def test_steps_to_a_target_are_those_made() -> None:
    recipe = compose_recipe(*SMITH, "metric.steps_to={top1_error: 9}")
    rates = {epoch: {"val_top1_error": 15.0 - epoch} for epoch in range(1, 10)}
    assert recipe.final_metric(METRICS["top1_error"]).final_metric(rates) == 5 * 937 + 93


def test_the_fewest_workers_bound_the_processes() -> None:
    check_world_size(compose_recipe(*SMITH), 2)
    fewer = compose_recipe(SMITH[0], "batch_schedule=[[3,1,64],[5,4,32]]")
    with pytest.raises(UsageError, match=r"2 processes cannot share workers=1; start 1$"):
        check_world_size(fewer, 2)
    with pytest.raises(UsageError, match=r"3 processes cannot share workers=2"):
        check_world_size(compose_recipe(*SMITH), 3)


def test_a_growing_batch_is_another_run() -> None:
    recipe = compose_recipe("+recipe=fashion_bs64")
    prints = [compose_recipe(*SMITH[:count]).fingerprint for count in (1, 2, 3)]
    assert len({*prints}) == 3
    assert prints[0] == recipe.fingerprint
    assert "batch_growth" not in recipe.trajectory()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("batch_growth.factor=3",), "factor=3 has no effect without batch_growth.milestones"),
        (("batch_growth.milestones=[9]",), r"milestones=\[9\] has 9, which is outside a run of 9"),
        (("batch_growth.milestones=[0]",), r"milestones=\[0\] has 0, which is outside"),
        (("batch_growth.milestones=[7,5]",), r"milestones=\[7,5\] does not rise"),
        (("batch_growth.milestones=[5]", "batch_growth.factor=1"), "factor=1 is not possible"),
        (("batch_growth.milestones=[5]", "strategy=sync"), "those of strategy=sync stay the same"),
        (("batch_schedule=[[9,2,32]]",), r"=\[\[9,2,32\]\] has 9, which is outside a run of 9"),
        (("batch_schedule=[[0,2,32]]",), r"has \[0,2,32\], which is not an epoch from 1 on"),
        (("batch_schedule=[[3,2,1]]",), r"has \[3,2,1\], which is not .* worker_batch from 2 on"),
        (("batch_schedule=[[3,2]]",), r"has \[3,2\], which is not"),
        (("batch_schedule=[3]",), "has 3 in it and is not a list of lists of whole numbers"),
        (("batch_schedule=[[3,2,2],[3,4,2]]",), "is not in the order of its epochs"),
        (("batch_schedule=[[3,2,40000]]",), "batch_size of 80000 from epoch 3 on .*; write fewer"),
        (("batch_schedule=[[3,1,7]]", "tail=keep", "data.train_examples=50009"), "single image"),
        (("batch_schedule=[[3,2,2]]", "strategy=sync"), "those of strategy=sync stay the same"),
        (("batch_schedule=[[3,2,2]]", "batch_growth.milestones=[2]"), "both change the minibatch"),
        (("batch_schedule=[[3,2,2]]", "workers_per_pass=auto"), "=auto is timed with one micro"),
        (
            ("batch_growth.milestones=[3,5,7]", "batch_growth.factor=10"),
            r"grows to a batch_size of 64000 \(2 workers x worker_batch=32 x 10\^3\), which",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_recipe(compose_recipe("+recipe=fashion_bs64", *words))


def test_a_plan_for_one_minibatch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+recipe=bs8k", "batch_growth.milestones=[30]"]
    assert plan([*words, "nodes=1", "gpus=8", "--to", "75.9"]) == 2
    assert "write batch_growth.milestones=[] workers=256, and for what" in capsys.readouterr().err
    assert plan(["memory", words[0], "batch_schedule=[[30,128,64]]"]) == 2
    assert "write batch_schedule=[] and the workers= and" in capsys.readouterr().err
