from collections.abc import Callable
from functools import partial

import pytest

from lsgd.bench import timing
from lsgd.bench.timing import Estimate, Samples, estimate, measure, speed_ratio, time_ratio
from lsgd.errors import UsageError


def test_a_known_ratio_is_resolved_on_a_machine_that_slows_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every round is slower than the one before, 6 times in all; within a round it is 2 : 1."""
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def work(seconds: float, number: int) -> int:
        clock[0] += seconds * (1 + number)
        return 1

    speeds = measure({"slow": partial(work, 0.02), "fast": partial(work, 0.01)}, 6, what="work")
    assert speeds["fast"] == pytest.approx([100 / number for number in range(2, 8)])
    times = speed_ratio(speeds, "fast", "slow")
    assert times.compare_at_least(1.3) == "yes"
    assert times.compare_at_least(3) == "no"
    assert speed_ratio(speeds, "slow", "fast").compare_at_least(0.8) == "no"


def test_equals_are_not_resolved() -> None:
    """Each is the faster one in some rounds, by as much as 10 %; nor is a bar at the very edge."""
    speeds: Samples = {"one": [100.0] * 7, "other": [104.0, 90.0, 101.0, 98.0, 110.0, 99.0, 97.0]}
    assert speed_ratio(speeds, "one", "other").compare_at_least(1) == "not resolved"
    assert speed_ratio(speeds, "other", "one").compare_at_least(1) == "not resolved"
    for bar in (0.9, 1.1):
        assert Estimate(1.0, 0.9, 1.1).compare_at_least(bar) == "not resolved"
        assert Estimate(1.0, 0.9, 1.1).compare_at_most(bar) == "not resolved"


def test_a_cost_is_a_ratio_of_times() -> None:
    """Half the speed is twice the time, and that is what must lie below the bar."""
    speeds: Samples = {"slow": [1.0, 2.0, 3.0] * 3, "fast": [2.0, 4.0, 6.0] * 3}
    assert time_ratio(speeds, "slow", "fast") == Estimate(2, 2, 2)
    assert time_ratio(speeds, "slow", "fast").compare_at_most(1.9) == "no"
    assert time_ratio(speeds, "slow", "fast").compare_at_most(2.1) == "yes"


@pytest.mark.parametrize(
    ("rounds", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)]
)
def test_the_interval_is_that_of_the_sign_test(rounds: int, low: int, high: int) -> None:
    """As in tables for the median, such as Conover's: order statistics of at least 95 %."""
    values = [float(value) for value in range(rounds, 0, -1)]
    assert estimate(values) == Estimate((rounds + 1) / 2, low, high)


def test_rounds_are_interleaved_and_the_first_does_not_count() -> None:
    """Each candidate comes once a round, first and last now and then, and is told the round."""
    calls: list[tuple[int, str]] = []

    def noted(name: str) -> Callable[[int], int]:
        def work(number: int) -> int:
            calls.append((number, name))
            return 1

        return work

    speeds = measure({name: noted(name) for name in "abc"}, 6, what="noted")
    assert all(len(values) == 6 for values in speeds.values())
    by_round = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert [{number for number, _ in each} for each in by_round] == [{n} for n in range(7)]
    assert all({name for _, name in each} == {"a", "b", "c"} for each in by_round)
    assert {each[0][1] for each in by_round} == {each[-1][1] for each in by_round} == {*"abc"}


def test_too_few_rounds_for_an_interval_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--rounds 5 is too few .* write 6 or more"):
        measure({"a": lambda number: 1}, 5, what="nothing")
