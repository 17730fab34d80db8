"""MLPerf's rule by the numbers that its own checker gives for points of ResNet-50."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd import definitions
from lsgd.rules.convergence import (
    FAILS,
    NOT_JUDGED,
    OWN_POINT,
    PASSES,
    SCALED,
    ConvergencePoint,
    EvaluationEpochs,
    ReferenceStatistics,
    judge_convergence,
    prune_points,
    reference_at,
)

POINTS = definitions.load_points("mlperf_resnet")
PRUNED = POINTS.pruned


@pytest.mark.parametrize(
    ("batch_size", "runs", "mean", "std", "minimum"),
    [
        (1632, 17, 35.00, 1.085, 33.8023),
        (4096, 10, 39.88, 1.0, 38.6340),
        (49152, 10, 68.00, 0.632, 67.2151),
        (67840, 28, 85.85, 0.639, 85.1826),
    ],
)
def test_a_point_as_mlperf_counts_it(
    batch_size: int, runs: int, mean: float, std: float, minimum: float
) -> None:
    (point,) = (point for point in POINTS.judged if point.batch_size == batch_size)
    found = point.reference
    assert (len(point.epochs), found.n) == (runs, runs - 2)
    assert found.mean == pytest.approx(mean, abs=0.005001)
    assert found.std == pytest.approx(std, abs=0.0005001)
    assert found.minimum == pytest.approx(minimum, abs=1e-4)  # to which theirs is bisected


def test_the_points_that_are_left() -> None:
    assert [each.batch_size for each in PRUNED] == [1632, 3264, 32768, 49152, 67840]


@pytest.mark.parametrize(
    ("batch_size", "mean", "std", "minimum"),
    [
        (8192, 38.6357, 0.6980, 37.8105),
        (16384, 44.4238, 0.6144, 43.6975),
        (57344, 75.8230, 0.6353, 75.0720),
    ],
)
def test_the_bar_between_two_points(
    batch_size: int, mean: float, std: float, minimum: float
) -> None:
    found = reference_at(PRUNED, batch_size)
    assert found is not None
    assert (found.mean, found.std) == (pytest.approx(mean, abs=1e-4), pytest.approx(std, abs=1e-4))
    assert found.n == 10
    assert found.minimum == pytest.approx(minimum, abs=1.01e-4)


@given(st.floats(1, 99), st.floats(0.01, 5), st.integers(3, 40))
def test_the_minimum_is_where_a_t_test_stops_to_tell_the_two_apart(
    mean: float, std: float, n: int
) -> None:
    """By scipy's test of two samples of which the statistics are known, as MLPerf asks it."""
    from scipy.stats import ttest_ind_from_stats

    least = ReferenceStatistics(8192, mean, std, n).minimum
    test = ttest_ind_from_stats(least, std, n, mean, std, 3, alternative="less")
    assert test.pvalue == pytest.approx(0.05)


def test_without_spread_any_gain_is_too_much() -> None:
    assert ReferenceStatistics(8192, 40.0, 0.0, 8).minimum == 40.0


def point(batch_size: int, epochs: float) -> ConvergencePoint:
    return ConvergencePoint(batch_size, (epochs, epochs, epochs))


@pytest.mark.parametrize(
    ("epochs", "left"),
    [
        ({1: 40, 2: 30, 3: 35}, [2, 3]),  # below the fastest
        ({1: 30, 2: 30, 3: 30}, [1, 2, 3]),  # on the line is no slower than it
        ({3: 40, 1: 30, 2: 36}, [1, 3]),  # in the order of the minibatches
        # What follows one that has gone is looked at beside other neighbours.
        ({1: 30, 2: 34, 3: 34, 4: 44, 5: 40}, [1, 3, 5]),
        # No convex envelope: 2 stays below the line from 1 to 3, though not to 4.
        ({1: 30, 2: 35, 3: 41, 4: 42}, [1, 2, 4]),
    ],
)
def test_what_goes_and_what_stays(epochs: dict[int, float], left: list[int]) -> None:
    pruned = prune_points([point(*each) for each in epochs.items()])
    assert [each.batch_size for each in pruned] == left


def judged(batch_size: int, *epochs: float) -> tuple[str, float]:
    found = judge_convergence(PRUNED, batch_size, epochs)
    return found.verdict, round(found.factor, 4)


def test_a_submission_is_judged_at_a_point() -> None:
    """At 32768 the reference needs 56.00 epochs, and 55.45 are enough."""
    assert judged(32768, 55, 56, 56, 56, 60) == (PASSES, 1.0)
    assert judged(32768, 56, 56, 56, 57, 57) == (PASSES, 1.0)
    assert judged(32768, 1, 55, 56, 56, 99) == (SCALED, round(56 / (167 / 3), 4))
    assert judged(32768, 55, 55, 55, 56, 56) == (FAILS, 1.0)


def test_between_points_and_beside_a_point_that_does_not_count() -> None:
    """The reference needs 41.88 epochs at 8192, and 38.64 are asked for all the same."""
    assert judged(8192, 39, 39, 39, 39, 39) == (PASSES, 1.0)
    assert judged(8192, 38, 38, 38, 38, 38) == (SCALED, round(38.6357 / 38, 4))
    assert judged(8192, 37, 37, 38, 38, 38) == (FAILS, 1.0)


def test_outside_of_all_points() -> None:
    """A smaller minibatch has to pass the smallest point, and a larger one has none."""
    assert judged(1024, 35, 35, 35, 35, 35) == (PASSES, 1.0)
    assert judged(1024, 34, 34, 34, 34, 34) == (SCALED, round(35 / 34, 4))
    assert judged(1024, 33, 33, 33, 33, 33) == (OWN_POINT, 1.0)
    assert judged(67841, 99, 99, 99, 99, 99) == (OWN_POINT, 1.0)


def test_one_run_of_five_may_fail() -> None:
    assert judged(32768, 56, 56, 56, 56, math.inf) == (PASSES, 1.0)
    assert judged(32768, 56, 56, 56, math.inf, math.inf) == (FAILS, 1.0)
    assert judged(99999, 56, 56, 56, math.inf, math.inf) == (FAILS, 1.0)


def test_other_than_five_runs_are_no_submission() -> None:
    assert judged(32768) == (NOT_JUDGED, 1.0)
    assert judged(32768, 56, 56, 56, 55.4450) == (NOT_JUDGED, 1.0)
    assert judged(32768, *[56] * 6) == (NOT_JUDGED, 1.0)


def test_the_grid_that_begins_latest() -> None:
    assert [EvaluationEpochs(every).max_delay for every in (1, 4)] == [0, 3]
