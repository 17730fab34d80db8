"""How long the rest takes, by a clock that the test turns."""

import pytest

from lsgd.run.remaining import WINDOW, RemainingTime


def test_nothing_is_known_before_a_step_has_been_seen() -> None:
    remaining = RemainingTime()
    assert remaining.seconds(10) is None
    remaining.update(5.0, 3.0)
    assert remaining.seconds(10) is None
    remaining.update(9.0, 3.0)  # no progress, as within a step of one pass
    assert remaining.seconds(10) is None


def test_it_is_the_speed_of_the_last_minute_that_counts() -> None:
    """The first steps, which compile, are forgotten; and so is a machine that was busy."""
    remaining = RemainingTime()
    for second in range(0, 100, 10):  # ten seconds a step
        remaining.update(second, second / 10)
    assert remaining.seconds(6) == pytest.approx(60)
    for second in range(100, 100 + 2 * int(WINDOW), 10):  # one second a step
        remaining.update(second, second)
    assert remaining.seconds(6) == pytest.approx(6)


def test_an_evaluation_and_a_save_between_epochs_are_no_steps() -> None:
    remaining = RemainingTime()
    remaining.update(0.0, 0)
    remaining.update(2.0, 1)
    for now in (2.0, 5.0):  # two sets
        remaining.start_evaluation(now)
    remaining.end_evaluation(32.0)
    remaining.start_training()
    remaining.update(40.0, 1)
    assert remaining.seconds(1) == pytest.approx(2)  # the speed of the epoch before
    remaining.update(44.0, 3)
    assert remaining.seconds(3, evaluations=2) == pytest.approx(3 * 2 + 2 * 30)
    remaining.end_evaluation(100.0)  # of an epoch without any
    assert remaining.seconds_per_evaluation == 30
