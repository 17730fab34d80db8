"""The shipped convergence points, and points that are refused."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from helpers.composed import compose_recipe

from lsgd import config, definitions
from lsgd.errors import UsageError
from lsgd.recipe.published_points import (
    DISPLAYED_LABELS,
    JUDGED_LABELS,
    PublishedPoints,
    check_points,
    points_of_paper,
)
from lsgd.recipe.settings import PAPERS
from lsgd.rules.metric import METRICS

MLPERF = definitions.load_points("mlperf_resnet")


@pytest.mark.parametrize("points", definitions.load_all_points(), ids=lambda points: points.name)
def test_every_number_says_how_it_is_known(points: PublishedPoints) -> None:
    """Nothing is from memory, and nothing is judged by a number that was not read at its source."""
    assert {point.label for point in points.points} <= {*JUDGED_LABELS, *DISPLAYED_LABELS}
    assert points.source
    assert all(point.source for point in points.points if point.label in DISPLAYED_LABELS)
    assert points.paper in ("", *PAPERS)
    judged = {point.batch_size for point in points.judged}
    assert judged == {point.batch_size for point in points.points if point.label in JUDGED_LABELS}
    assert not judged & {
        point.batch_size for point in points.points if point.label in DISPLAYED_LABELS
    }


@pytest.mark.parametrize("points", definitions.load_all_points(), ids=lambda points: points.name)
def test_they_are_of_what_lsgd_has(points: PublishedPoints) -> None:
    assert points.rate in METRICS
    assert config.load_data(points.data).name == points.data
    assert compose_recipe("+recipe=bs8k", f"model={points.model}").model.name == points.model


@pytest.mark.parametrize("name", ["mlperf05", "mlperf06"])
def test_points_of_submissions_are_their_recipes(name: str) -> None:
    """Each recipe's own, and evaluated where its runs ended."""
    for point in definitions.load_points(name).points:
        recipe = compose_recipe(f"+recipe={point.recipe}")
        assert (recipe.batch_size, recipe.worker_batch) == (point.batch_size, point.bn_span)
        assert (recipe.optim.name, recipe.optim.weight_decay, recipe.optim.momentum) == (
            point.optimizer, point.weight_decay, point.momentum
        )  # fmt: skip
        rule = recipe.schedule
        assert (rule.reference_lr, rule.warmup_epochs) == (point.lr, point.warmup_epochs)
        assert all(recipe.evaluates_after(int(epoch) - 1) for epoch in point.epochs)
        assert max(point.epochs) <= recipe.epochs


def test_a_run_meets_the_point_of_its_recipe() -> None:
    """Of four points of 32,768 images the one that it would repeat, and of other papers none."""
    every = definitions.load_all_points()
    assert [p.name for p in points_of_paper(every, "mlperf06")] == ["mlperf06", "mlperf_resnet"]
    assert [p.name for p in points_of_paper(every, "goyal2017")] == ["mlperf_resnet"]
    points = definitions.load_points("mlperf06")
    for recipe, epochs in (("mlperf06_span32", [76] * 5), ("mine", [76, 72, 76, 72, 76])):
        [own] = [p for p in points.for_recipe(recipe).points if p.batch_size == 32768]
        assert own.epochs == epochs
    assert len(points.for_recipe("mine").points) == len(points.points) - 3
    assert MLPERF.for_recipe("mine") == MLPERF


def test_mlperfs_runs_leave_no_coarser_grid() -> None:
    """Each minibatch with a spread has runs that end one epoch apart, as its file says."""
    assert (MLPERF.every, MLPERF.offset) == (1, 0)
    for point in MLPERF.judged:
        ends = sorted(set(point.epochs))
        assert min(b - a for a, b in pairwise(ends)) == 1


def test_what_is_shown_is_not_judged() -> None:
    """The two points of SGD, of no runs."""
    shown = [(p.batch_size, p.epochs) for p in MLPERF.points if p.label == "issue"]
    assert shown == [(1600, [40]), (3200, [41])]
    assert {1600, 3200}.isdisjoint(point.batch_size for point in MLPERF.judged)
    assert len(MLPERF.judged) == 10


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"label": "memory"}, "minibatch 1632: label=memory is unknown; write one of git, paper,"),
        ({"epochs": [35.0, 36.0]}, "2 of the 3 runs that a judgement needs at least"),
        ({"epochs": [35.0, 36.0, float("inf")]}, "minibatch and epochs are numbers above 0"),
        ({"batch_size": 0}, "minibatch and epochs are numbers above 0"),
        ({"batch_size": 3264}, "or one of them twice"),
    ],
)
def test_points_that_are_not_known_well_enough_are_refused(
    changed: dict[str, Any], says: str
) -> None:
    first, *rest = MLPERF.points
    with pytest.raises(UsageError, match=says):
        check_points(replace(MLPERF, points=[replace(first, **changed), *rest]))
