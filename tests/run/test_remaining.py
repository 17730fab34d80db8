"""How long the rest takes, by a clock that the test turns."""

from dataclasses import replace

import pytest
from helpers.base_recipe import BASE

from lsgd.recipe import ImageSizes
from lsgd.run.remaining import WINDOW, RemainingTime, equal_steps_left


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


def test_later_steps_of_larger_images_count_by_their_pixels() -> None:
    side, of_epoch = BASE.data.image_size, BASE.steps_per_epoch
    assert equal_steps_left(BASE, 3) == BASE.total_steps - 3
    growing = replace(BASE, image_sizes=ImageSizes(points=[[0, side // 2], [1, side]], multiple=1))
    assert [growing.training_size(epoch) for epoch in (0, 1)] == [side // 2, side]
    later = (BASE.epochs - 1) * of_epoch
    assert equal_steps_left(growing, 3) == of_epoch - 3 + 4 * later
    assert equal_steps_left(growing, of_epoch) == later
    assert equal_steps_left(growing, growing.total_steps) == 0
