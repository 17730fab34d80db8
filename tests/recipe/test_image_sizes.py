"""Sizes of training images by epoch: the published ones, a dry run's, and what is refused."""

from dataclasses import replace

import pytest
from helpers.composed import compose_recipe

from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.epoch_scaling import scale_epochs
from lsgd.rules.schedule import size_by_points


@pytest.mark.parametrize(
    ("begin", "end", "first"),
    [(11, 13, 12), (17, 20, 19), (23, 27, 25), (29, 34, 32), (41, 48, 45), (65, 76, 71)],
)
def test_the_sizes_of_ffcv(begin: int, end: int, first: int) -> None:
    """From 160 to 192 pixels in multiples of 32, which is one step."""
    points = [[begin, 160.0], [end, 192.0]]
    found = [size_by_points(epoch, points, 32) for epoch in range(90)]
    assert found == [160] * first + [192] * (90 - first)


def test_the_sizes_of_mosaic() -> None:
    """From half of 176 pixels, from 0.4 of the run on, to all of them for its last fifth."""
    points = [[40.0, 88.0], [80.0, 176.0]]
    found = [size_by_points(epoch, points, 4) for epoch in (0, 40, 50, 60, 70, 80)]
    assert found == [88, 88, 112, 132, 152, 176]


def sized(*words: str) -> Recipe:
    few = ("+recipe=bs256", "epochs=30", "schedule.milestones=[]", "image_sizes.multiple=32")
    return compose_recipe(*few, "image_sizes.points=[[11,160],[13,192],[20,192],[20,224]]", *words)


def test_a_run_has_the_sizes_of_its_epochs() -> None:
    recipe = sized("data.image_size=256")
    assert [recipe.training_size(epoch) for epoch in (0, 11, 12, 19, 20, 29)] == [
        160, 160, 192, 192, 224, 224,
    ]  # fmt: skip
    assert recipe.training_sizes == (160, 192, 224)
    text = "training images of 160, 192 from epoch 12 on, 224 from epoch 20 on pixels; evaluated "
    assert f"{text}ones of 256" in recipe.summary()
    plain = compose_recipe("+recipe=bs256")
    assert plain.training_sizes == (224,)
    assert "image_sizes" not in plain.trajectory()
    assert recipe.trajectory()["image_sizes"]["multiple"] == 32
    assert scale_epochs(recipe, 15)[-1] == "image_sizes.points=[[6,160],[6,192],[10,192],[10,224]]"


def test_a_dry_run_has_sizes_in_proportion() -> None:
    small = make_dry_run(sized("data.image_size=256"))
    assert small.training_sizes == (20, 22, 24, 28)
    assert small.data.image_size == 32
    library = make_dry_run(sized("model=torchvision/resnet18"))
    assert library.training_sizes == (160, 192, 224)


def test_evaluated_images_have_the_size_of_their_epoch_and_at_the_end_that_of_predictions() -> None:
    recipe = compose_recipe(
        "+recipe=bs256", "data.image_size=288", "evaluation.rectangle_batch=128",
        "evaluation.image_sizes=[[0,128,0.8],[30,224],[60,288]]", "evaluation.rectangle_epoch=60",
    )  # fmt: skip
    square, rectangle = (224, 0.875, False), (288, 0.875, True)
    sizes = [recipe.evaluated_images(epoch) for epoch in (29, 30, 59, 60, 89)]
    assert sizes == [(128, 0.8, False), square, square, rectangle, rectangle]
    assert recipe.evaluated_changes == ((0, sizes[0]), (30, square), (60, rectangle))
    text = "evaluated ones of 128, 224 from epoch 30 on, 288 in rectangles from epoch 60 on"
    assert f"training images of 288 pixels; {text}" in recipe.summary()
    assert scale_epochs(recipe, 9)[-2:] == [
        "evaluation.image_sizes=[[0,128,0.8],[3,224],[6,288]]", "evaluation.rectangle_epoch=6",
    ]  # fmt: skip
    ends = scale_epochs(recipe, 1)[-2:]  # the size of the end is never lost
    assert ends == ["evaluation.image_sizes=[[0,288]]", "evaluation.rectangle_epoch=0"]
    assert make_dry_run(recipe).evaluated_changes == ((0, (32, 0.875, False)),)
    ratio = 288 / 328  # all of whose digits are rarely typed, or shown
    words = ["+recipe=bs256", "schedule=cosine", "data.image_size=288", f"data.crop_ratio={ratio}"]
    other = load_recipe([*words, f"evaluation.image_sizes=[[0,128],[45,288,{ratio:.6g}]]"])
    exact = replace(other.evaluation, image_sizes=[[0, 128], [45, 288, ratio]])
    load_recipe([*words, *scale_epochs(replace(other, evaluation=exact), 10)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluation.image_sizes=[[0,128]]", "ends with 128 pixels .* data.image_size=224 and .*;"),
        ("evaluation.image_sizes=[[0,224,0.9]]", "a crop_ratio of 0.9, and a trained .*=0.875;"),
        ("evaluation.image_sizes=[[1,224]]", "does not begin at epoch 0"),
        ("evaluation.image_sizes=[[0,128],[90,224]]", "begins at epoch 90 of a run of 90"),
        ("evaluation.image_sizes=[[0,12.5],[9,224]]", r"has \[0,12.5\], which is not an epoch, a"),
        ("evaluation.image_sizes=[[0,112,1.5],[9,224]]", "a crop_ratio above 0 and up to 1; write"),
        ("evaluation.rectangle_epoch=3", "has no effect without evaluation.rectangle_batch; write"),
        ("evaluation.rectangle_batch=8 data.image_size=100", "multiples of 8, .* and 100 is not"),
        ("evaluation.rectangle_batch=8 evaluation.rectangle_epoch=90", "=90 begins at epoch 90 of"),
        (
            "evaluation.image_sizes=[[0,28]] data=fashion_mnist model=lenet5 workers=2",
            "model=lenet5 takes 28 x 28; write",
        ),
        ("image_sizes.multiple=4", "multiple=4 has no effect without image_sizes.points"),
        ("image_sizes.points=[[0,0.5]]", r"has \[0,0.5\], which is not a pair .*from 1 on"),
        ("image_sizes.points=[[91,64]]", "has epoch 91, which is outside a run of 90 epochs"),
        ("image_sizes.points=[[0,15]] image_sizes.multiple=32", "rounds a size to 0; write a"),
        (
            "image_sizes.points=[[0,64]] workers_per_pass=auto",
            "workers_per_pass=auto is timed with one",
        ),
        (
            "image_sizes.points=[[0,28]] data=fashion_mnist model=lenet5 workers=2",
            "model=lenet5 takes 28 x 28; write",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(["+recipe=bs256", *words.split()])
