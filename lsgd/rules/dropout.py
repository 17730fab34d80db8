"""Dropout as a function of (seed, epoch, example): no way to batch or pad sentences changes it."""

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

FEATURE, WORD = 5, 6
"""Last words of the counter, beside those of the order and of augmentation."""


def feature_masks(
    examples: NDArray[np.int64], features: int, rate: float, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """What the features of each sentence are multiplied by, shape (examples, features): 0 with the
    probability `rate`, else 1 / (1 - rate).

    All words of a sentence have the same mask (Gal and Ghahramani 2016, section 4.1).
    """
    places = np.arange(-(-features // 4))
    draws = philox.uniforms((np.asarray(examples)[:, None], epoch, places, FEATURE), key=seed)
    # Of each place the four numbers side by side.
    kept = draws.transpose(1, 2, 0).reshape(len(examples), -1)[:, :features] >= rate
    return kept / (1 - rate)


def dropped_words(
    examples: NDArray[np.int64], places: NDArray[np.int64], rate: float, *, seed: int, epoch: int
) -> NDArray[np.bool_]:
    """Whether each word, at these places of the sentences `examples`, is taken for an unknown one,
    with the probability `rate`: shape (words,), as both arguments have."""
    dropped: NDArray[np.bool_] = (
        philox.uniforms((examples, epoch, places, WORD), key=seed)[0] < rate
    )
    return dropped
