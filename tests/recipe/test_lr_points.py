"""An lr by points: the published schedules, its steps in a run, and what is refused."""

import math
from dataclasses import replace

import pytest
from helpers.base_recipe import BASE, with_fields
from helpers.composed import compose_recipe
from hypothesis import assume, given
from hypothesis import strategies as st

from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.continuation import past_difference
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.epoch_scaling import scale_epochs
from lsgd.rules.schedule import jumps, value_by_points

FFCV = [[0.0, 1.7e-4], [2.0, 1.7]]
DIU = [[0.0, 1.92], [6.0, 3.84], [11.0, 3.84], [14.0, 1.92], [17.0, 1.92], [23.0, 0.336]]


def by_points(points: list[list[float]], **values: object) -> Recipe:
    return with_fields(
        BASE, schedule__decay="points", schedule__points=points, schedule__milestones=[],
        schedule__scaling="none", schedule__warmup="none", **values,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("epochs", "at_half"),
    [
        (16, 0.971429),
        (24, 0.927273),
        (32, 0.906667),
        (40, 0.894737),
        (56, 0.881481),
        (88, 0.869767),
    ],
)
def test_the_lr_of_ffcv(epochs: int, at_half: float) -> None:
    """Of its train_imagenet.py, which interpolates between the first steps of two epochs."""
    recipe = by_points([*FFCV, [epochs, 0.0]], epochs=epochs)
    steps = [recipe.first_step(epoch) for epoch in (0, 1, 2, epochs // 2)]
    assert [recipe.lr(step) for step in steps] == pytest.approx(
        [1.7e-4, 0.850085, 1.7, at_half], abs=5e-7
    )
    assert 0 < recipe.lr(recipe.total_steps - 1) < 1e-3


def test_the_lr_of_fast_ai() -> None:
    """Of its log on 64 GPUs, which counts batches from 1: 157 in an epoch, then 79."""
    found = [value_by_points(epoch, DIU) for epoch in (1 / 157, 11 + 1 / 79)]
    assert found == pytest.approx([1.9220382, 3.8318987], abs=5e-8)


def test_the_lr_of_the_recipes_by_value() -> None:
    """A step of DIU has the lr of its update, and MosaicML's cosine that of its begin."""
    diu = compose_recipe("+recipe=diu_v100x64")
    found = [diu.lr(diu.first_step(epoch)) for epoch in (0, 11)]
    assert found == pytest.approx([1.9220382, 3.8318987], abs=5e-8)
    mosaic = compose_recipe("+recipe=mosaic_mild")
    found = [mosaic.lr(mosaic.first_step(epoch)) for epoch in (4, 8, 15, 22, 29)]
    assert found == pytest.approx([1.024, 2.048, 1.748077, 1.024, 0.299923], abs=5e-7)


def test_a_jump_has_both_sides_and_the_ends_stay() -> None:
    points = [[1.0, 2.0], [3.0, 4.0], [3.0, 1.0], [4.0, 0.5], [4.0, 8.0]]
    epochs = (0, 1, 2.5, 3 - 1e-9, 3, 3.5, 4, 90)
    found = [value_by_points(epoch, points) for epoch in epochs]
    assert found == pytest.approx([2, 2, 3.5, 4, 1, 0.75, 8, 8], abs=1e-8)
    assert [*jumps(points)] == [3.0, 4.0]
    recipe = by_points(points)
    assert [epoch for epoch in range(90) if recipe.drops_in(epoch)] == [2, 3]


@given(
    st.lists(st.tuples(st.integers(0, 90), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0, 90),
)
def test_between_two_points_the_lr_is_between_theirs(
    points: list[tuple[int, float]], epoch: float
) -> None:
    points = sorted(points, key=lambda point: point[0])
    assume(all(not 0 < at - epoch < 1e-8 for at, _ in points))  # as a jump has begun there
    found = value_by_points(epoch, points)
    before = [lr for at, lr in points if at <= epoch][-1:] or [points[0][1]]
    after = [lr for at, lr in points if at > epoch][:1] or [points[-1][1]]
    (low, high) = sorted(before + after)
    assert low - 1e-12 <= found <= high + 1e-12


def test_a_dry_run_makes_the_steps_beside_each_point_at_the_lr_of_the_run() -> None:
    recipe = by_points(DIU)
    small = replace(make_dry_run(recipe), rehearse=True)
    made = {step for _, steps in small.epochs_from(0) for step in steps}
    for epoch, _ in DIU[1:]:
        assert {recipe.first_step(int(epoch)) + back for back in (-1, 0)} <= made
    assert all(math.isclose(small.lr(step), recipe.lr(step), rel_tol=1e-12) for step in made)


def test_a_run_goes_on_to_more_points_and_is_scaled_with_its_epochs() -> None:
    recipe = by_points([[0.0, 1.0], [10.0, 3.0]], epochs=10)
    longer = by_points([[0.0, 1.0], [10.0, 3.0], [20.0, 0.0]], epochs=20)
    assert not past_difference(longer, recipe, recipe.total_steps)
    other = by_points([[0.0, 1.0], [20.0, 3.0]], epochs=20)
    assert "step 1" in past_difference(other, recipe, 2)
    sized = by_points([[0.0, 0.5], [6.5, 2.0], [10.0, 1.0], [10.0, 0.5], [20.0, 0.0]], epochs=20)
    assert scale_epochs(sized, 9) == [
        "epochs=9", "schedule.points=[[0,0.5],[2.925,2],[4,1],[4,0.5],[9,0]]"
    ]  # fmt: skip


def test_the_pairs_are_read_as_numbers() -> None:
    words = ["+recipe=bs256", "schedule=points", "epochs=4"]
    recipe = load_recipe([*words, "schedule.points=[[0,1],[4,2]]"])
    assert recipe.schedule.points == [[0.0, 1.0], [4.0, 2.0]]
    assert type(recipe.schedule.points[0][1]) is float
    assert "lr 1 to 2" in recipe.summary()
    assert (
        recipe.fingerprint
        == compose_recipe(*words, "schedule.points=[[0.0,1.0],[4,2]]").fingerprint
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("schedule.points=[]", "has no lr above 0; write pairs"),
        ("schedule.points=[[0,0]]", "has no lr above 0; write pairs"),
        ("schedule.points=[0,2]", "has 0 in it and is not a list of lists of numbers; write"),
        ("schedule.points=[[0,x]]", "has x in it and is not a list of lists"),
        ("schedule.points=[[0,1,2]]", r"has \[0,1,2\], which is not a pair of an epoch and"),
        ("schedule.points=[[0,-1]]", r"has \[0,-1\], which is not a pair .* number from 0 on"),
        ("schedule.points=[[2,1],[1,1]]", "is not in the order of its epochs"),
        ("schedule.points=[[1,1],[1,2],[1,3]]", r"three pairs of epoch 1, of which \[1,2\] has no"),
        ("schedule.points=[[0,1],[91,1]]", "has epoch 91, which is outside a run of 90 epochs"),
        ("schedule.points=[[0,1]] schedule.scaling=linear", "scaling=linear .*write .*=none"),
        ("schedule.points=[[0,1]] schedule.warmup=gradual", "warmup=gradual .*write .*=none"),
        ("schedule.points=[[0,1]] optim.head_lr=0.1", "head_lr=0.1 .*; write optim.head_lr=null"),
        ("schedule.points=[[0,1]] schedule.decay=cosine", "points=.*=cosine; .*schedule=points"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(["+recipe=bs256", "schedule=points", *words.split()])
