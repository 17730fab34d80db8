"""A comparison of two samples of numbers."""

import numpy as np
from numpy.typing import NDArray


def assert_same_distribution(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    """Assert that two samples may be of one distribution, by Kolmogorov and Smirnov's distance.

    It is below that of one in 10^5 pairs of equally distributed samples.
    """
    values = np.sort(np.concatenate((ours, theirs)))
    below = [np.searchsorted(np.sort(x), values, side="right") / len(x) for x in (ours, theirs)]
    assert np.abs(below[0] - below[1]).max() < 2.5 * np.sqrt(1 / len(ours) + 1 / len(theirs))
