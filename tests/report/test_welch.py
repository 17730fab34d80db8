"""Means, spreads and intervals: against tables, against scipy, and by hand."""

import math
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from lsgd.report.formatting import interval, mean_and_std
from lsgd.report.welch import SampleStats, sample_stats, welch_difference
from lsgd.rules.metric import named_metric

ERRORS = st.lists(st.floats(0, 100), min_size=2, max_size=8)


def test_a_sample_by_hand() -> None:
    found = sample_stats([8.0, 9.0, 13.0])
    # Mean 10; squares of -2, -1 and 3 are 14; over n - 1 = 2 that is 7.
    assert (found.n, found.mean) == (3, 10.0)
    assert found.std == pytest.approx(math.sqrt(7))
    assert math.isnan(sample_stats([8.0]).std)


def test_a_difference_by_hand() -> None:
    # Variances 0.04 / 3 and 0.0144 / 5: standard error 0.12734, 2.94 degrees of freedom.
    found = welch_difference(SampleStats(3, 24.0, 0.2), SampleStats(5, 23.6, 0.12))
    error = math.sqrt(0.04 / 3 + 0.0144 / 5)
    degrees = error**4 / ((0.04 / 3) ** 2 / 2 + (0.0144 / 5) ** 2 / 4)
    assert found.mean == pytest.approx(0.4)
    assert found.high - found.mean == pytest.approx(error * float(stats.t.ppf(0.975, degrees)))


@given(ERRORS, ERRORS)
@settings(max_examples=50)
def test_the_interval_is_scipys(a: list[float], b: list[float]) -> None:
    assume(statistics.stdev(a) > 1e-3 and statistics.stdev(b) > 1e-3)  # else scipy warns
    found = welch_difference(sample_stats(a), sample_stats(b))
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.low == pytest.approx(float(theirs.low), rel=1e-6, abs=1e-6)
    assert found.high == pytest.approx(float(theirs.high), rel=1e-6, abs=1e-6)


def test_runs_that_are_all_equal_show_no_spread_and_decide_nothing() -> None:
    found = welch_difference(sample_stats([90.0, 90.0]), sample_stats([8.0, 8.0]))
    assert (found.low, found.mean, found.high) == (-math.inf, 82.0, math.inf)


@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 1), (1, 1)])
def test_one_run_decides_nothing(n: int, m: int) -> None:
    found = welch_difference(
        sample_stats([8.0, 8.1, 8.2][:n]), sample_stats([20.0, 20.1, 20.2][:m])
    )
    assert (found.low, found.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e304])
def test_samples_of_any_size_have_the_interval_of_ordinary_ones(size: float) -> None:
    a, b = [8.0, 8.1, 8.3], [9.0, 9.1, 9.5]
    small = welch_difference(sample_stats(a), sample_stats(b))
    found = welch_difference(*(sample_stats([size * each for each in group]) for group in (a, b)))
    for name in ("mean", "low", "high"):
        assert getattr(found, name) == pytest.approx(size * getattr(small, name))


def test_a_mean_near_the_largest_float_does_not_overflow() -> None:
    assert sample_stats([1.5e308, 1.5e308]).mean == 1.5e308


def test_small_values_without_unit_are_shown_with_three_digits() -> None:
    metric = named_metric("mean_distance")
    far, near = sample_stats([0.0042, 0.0043, 0.0041], metric), sample_stats([0.0012] * 3, metric)
    assert (mean_and_std(far), mean_and_std(near)) == ("0.00420 ± 0.00010", "0.00120 ± 0.00000")
    assert interval(welch_difference(far, near)).startswith("+0.00300 (+0.0027")
    errors = [sample_stats([value] * 3) for value in (0.0042, 0.0012)]
    assert [*map(mean_and_std, errors)] == ["0.00 ± 0.00"] * 2


def test_huge_values_have_an_exponent() -> None:
    found = sample_stats([1e300, 3e300], named_metric("loss"))
    assert mean_and_std(found) == "2e+300 ± 1.41e+300"
