"""Made-up texts: so many tokens, the same for each seed, and something in them to learn."""

import numpy as np
import pytest

from lsgd.rules.sampler import epoch_order
from lsgd.text.synthetic import synthetic_sentences, synthetic_texts

COUNTS = {"train": 5000, "val": 400, "test": 1}


def test_a_made_up_text_has_the_numbers_that_are_asked_for() -> None:
    one, other, another = (
        synthetic_texts(COUNTS, classes=30, seed=seed).sets for seed in (0, 0, 1)
    )
    assert {name: len(tokens) for name, tokens in one.items()} == COUNTS
    for name, tokens in one.items():
        assert tokens.min() >= 0
        assert tokens.max() < 30
        assert np.array_equal(tokens, other[name])
    assert not np.array_equal(one["train"], another["train"])
    assert not np.array_equal(one["train"][:400], one["val"])


def test_a_token_says_something_about_the_next() -> None:
    tokens = synthetic_texts(COUNTS, classes=30, seed=0).sets["train"]
    follows = (tokens[1:] == (tokens[:-1] + 1) % 30).mean()
    assert 0.25 < follows < 0.6


def test_the_lengths_of_sentences_have_nothing_to_do_with_the_order_of_an_epoch() -> None:
    """Drawn by the same counter, the first epoch would go through them from like to unlike."""
    corpus = synthetic_sentences({"train": 4000}, words=50, classes=4, seed=0)
    lengths = corpus.sets["train"].lengths[epoch_order(4000, seed=0, epoch=0)]
    spread = [lengths[part].std() for part in (slice(500), slice(3500, None))]
    assert spread[0] == pytest.approx(spread[1], rel=0.3)
