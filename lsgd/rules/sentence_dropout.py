"""Dropout of features and tokens as a function of (seed, epoch, example).

It does not depend on how sentences are batched or padded.
"""

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

FEATURE_COUNTER, TOKEN_COUNTER = 5, 6
"""The last element of the counter for feature and token dropout."""


def feature_dropout_factors(
    examples: NDArray[np.int64], features: int, rate: float, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """Draw dropout factors for the features of each sentence, shape (sentences, features).

    A factor is 0 with the probability `rate`, else 1 / (1 - rate). All tokens of a sentence share a
    mask (Gal and Ghahramani 2016, section 4.1).
    """
    places = np.arange(-(-features // 4))
    draws = philox.uniforms(
        (np.asarray(examples)[:, None], epoch, places, FEATURE_COUNTER), key=seed
    )
    # The four numbers of each counter become adjacent features.
    kept = draws.transpose(1, 2, 0).reshape(len(examples), -1)[:, :features] >= rate
    return kept / (1 - rate)


def token_drop_mask(
    examples: NDArray[np.int64], places: NDArray[np.int64], rate: float, *, seed: int, epoch: int
) -> NDArray[np.bool_]:
    """Draw for each token whether dropout replaces it by the unknown token, with this probability.

    `examples` are the sentences of the tokens and `places` their positions; all shapes are
    (tokens,).
    """
    dropped: NDArray[np.bool_] = (
        philox.uniforms((examples, epoch, places, TOKEN_COUNTER), key=seed)[0] < rate
    )
    return dropped
