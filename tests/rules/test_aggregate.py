"""Numbers of several runs as one, of which some may be infinite."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules.convergence import mean_and_deviation, olympic_mean

NUMBERS = st.lists(st.floats(0, 1e3), min_size=3, max_size=20)


@given(NUMBERS)
def test_the_olympic_mean_leaves_out_the_best_and_the_worst(numbers: list[float]) -> None:
    rest = numbers.copy()
    rest.remove(min(rest))
    rest.remove(max(rest))
    assert olympic_mean(numbers) == pytest.approx(sum(rest) / len(rest))


@given(NUMBERS)
def test_a_run_that_never_reaches_its_target_is_the_worst_one(numbers: list[float]) -> None:
    """The olympic mean is of the others, and the mean is infinite."""
    with_one = [math.inf, *numbers]
    assert olympic_mean(with_one) == pytest.approx(statistics.fmean(sorted(numbers)[1:]))
    mean, deviation = mean_and_deviation(with_one)
    assert mean == math.inf
    assert math.isnan(deviation)
    assert olympic_mean([math.inf, *with_one]) == math.inf


def test_by_value() -> None:
    assert mean_and_deviation([34.0, 35.0, 39.0]) == (36.0, pytest.approx(7**0.5))
    mean, deviation = mean_and_deviation([34.0])
    assert mean == 34.0
    assert math.isnan(deviation)
    with pytest.raises(ValueError, match="not 2"):
        olympic_mean([34.0, 35.0])
