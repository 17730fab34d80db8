"""Class balance: draws of training examples by class, and weights of their losses."""

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

DRAW = 11
"""The last element of the counter for the draws, which separates them from all others."""


def balanced_order(labels: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Draw the examples of an epoch with replacement, so that all classes are equally frequent.

    The result has the shape of `labels`, the label of each training example. A position draws a
    class uniformly, of those that have examples, and then one of its examples. The draw is a
    function of (seed, epoch, position). The id of an example that was drawn r times before in the
    epoch is that of the example plus r times the number of examples, so that its augmentation is
    drawn anew.
    """
    count = len(labels)
    by_class = np.argsort(labels, kind="stable")
    _, begins, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
    for_class, within, *_ = philox.uint32_blocks((np.arange(count), epoch, 0, DRAW), key=seed)
    drawn = ((for_class * np.uint64(len(sizes))) >> np.uint64(32)).astype(np.int64)
    member = (within * sizes[drawn].astype(np.uint64)) >> np.uint64(32)
    examples = by_class[begins[drawn] + member.astype(np.int64)]
    order: NDArray[np.int64] = examples + count * _earlier_draws(examples)
    return order


def _earlier_draws(examples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each position how often its example was drawn at earlier positions."""
    by_example = np.argsort(examples, kind="stable")
    _, begins, counts = np.unique(examples[by_example], return_index=True, return_counts=True)
    earlier = np.empty_like(examples)
    earlier[by_example] = np.arange(len(examples)) - np.repeat(begins, counts)
    return earlier


def class_weights(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Return the weight N / (K N_c) of the loss of an example of class c, shape (classes,).

    N is the number of examples, K the number of classes that have any, and N_c the number of those
    of class c. The weights of all examples have the mean 1, and the mean of their weighted losses
    is the mean over the classes of the mean loss of a class.

    >>> class_weights(np.array([0, 0, 0, 2]), 3).round(3).tolist()
    [0.667, 0.0, 2.0]
    """
    counts = np.bincount(labels, minlength=classes)
    present = np.count_nonzero(counts)
    weights: NDArray[np.float64] = len(labels) / (present * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 0.0)
