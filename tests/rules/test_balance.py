"""Class balance: equally frequent classes in every epoch, and weights whose mean is 1."""

import numpy as np
import pytest

from lsgd.rules.balance import balanced_order, class_weights

LABELS = np.repeat([0, 2, 3], [2000, 15, 1])
"""Labels of three classes, without any example of class 1."""


def test_each_class_with_examples_is_equally_frequent() -> None:
    count = len(LABELS)
    order = balanced_order(LABELS, seed=3, epoch=1)
    assert order.shape == (count,)
    drawn = np.bincount(LABELS[order % count], minlength=4)
    assert drawn[1] == 0
    # Four standard deviations of a binomial of 1 in 3.
    assert np.abs(drawn[[0, 2, 3]] - count / 3).max() < 4 * np.sqrt(count * 2 / 9)
    of_second = np.bincount(order % count, minlength=count)[2000:2015]
    assert np.abs(of_second - count / 45).max() < 4 * np.sqrt(count / 45)


def test_a_draw_is_a_function_of_seed_epoch_and_position() -> None:
    count = len(LABELS)
    order = balanced_order(LABELS, seed=3, epoch=1)
    assert np.array_equal(order, balanced_order(LABELS, seed=3, epoch=1))
    for other in (balanced_order(LABELS, seed=4, epoch=1), balanced_order(LABELS, seed=3, epoch=2)):
        assert np.mean(order % count == other % count) < 0.5


def test_a_repeated_example_has_another_id_each_time() -> None:
    """Its crop is a function of its id, and would otherwise be the same."""
    count = len(LABELS)
    order = balanced_order(LABELS, seed=3, epoch=1)
    assert len(np.unique(order)) == count
    seen: dict[int, int] = {}
    for number in order.tolist():
        example = number % count
        assert number // count == seen.get(example, 0)
        seen[example] = number // count + 1


def test_weights_make_the_loss_the_mean_over_classes() -> None:
    losses = np.random.default_rng(0).random(len(LABELS))
    weights = class_weights(LABELS, 5)[LABELS]
    assert weights.mean() == pytest.approx(1)
    means = [losses[label == LABELS].mean() for label in (0, 2, 3)]
    assert (weights * losses).mean() == pytest.approx(np.mean(means))
    assert class_weights(LABELS, 5)[[1, 4]].tolist() == [0, 0]
