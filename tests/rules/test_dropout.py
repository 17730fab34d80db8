"""What is dropped is a function of seed, epoch and example alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules.sentence_dropout import feature_dropout_factors, token_drop_mask

EXAMPLES = np.arange(200)


@given(st.permutations(range(12)), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_masks_belong_to_examples(order: list[int], features: int, seed: int) -> None:
    """In whatever order and company; and a feature's number does not change how it is drawn."""
    examples = np.array(order)
    masks = feature_dropout_factors(examples, features, 0.4, seed=seed, epoch=3)
    assert masks.shape == (12, features)
    for example, mask in zip(examples, masks, strict=True):
        (alone,) = feature_dropout_factors(
            np.array([example]), features + 1, 0.4, seed=seed, epoch=3
        )
        assert np.array_equal(alone[:features], mask)


def test_masks_keep_the_mean() -> None:
    """Each number is 0 or 1 / (1 - rate), and no feature, sentence or epoch repeats another."""
    masks = feature_dropout_factors(EXAMPLES, 30, 0.25, seed=1, epoch=0)
    assert set(np.unique(masks)) == {0, 1 / 0.75}
    assert abs(masks.mean() - 1) < 0.03
    later = feature_dropout_factors(EXAMPLES, 30, 0.25, seed=1, epoch=1)
    for one, other in ((masks, later), (masks[1:], masks[:-1]), (masks[:, 1:], masks[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.04


def test_words_are_dropped_at_the_rate() -> None:
    examples, places = np.repeat(EXAMPLES, 30), np.tile(np.arange(30), 200)
    dropped = token_drop_mask(examples, places, 0.25, seed=1, epoch=0)
    assert abs(dropped.mean() - 0.25) < 0.02
    assert np.array_equal(
        token_drop_mask(examples[::-1], places[::-1], 0.25, seed=1, epoch=0), dropped[::-1]
    )
    other = token_drop_mask(examples, places, 0.25, seed=1, epoch=1)
    assert abs(np.corrcoef(dropped, other)[0, 1]) < 0.04
    assert not token_drop_mask(examples, places, 0.0, seed=1, epoch=0).any()
