"""Made-up texts: so many tokens, the same for each seed, and something in them to learn."""

import numpy as np

from lsgd.text.made_up import made_up_texts

COUNTS = {"train": 5000, "val": 400, "test": 1}


def test_a_made_up_text_has_the_numbers_that_are_asked_for() -> None:
    one, other, another = (made_up_texts(COUNTS, classes=30, seed=seed).sets for seed in (0, 0, 1))
    assert {name: len(tokens) for name, tokens in one.items()} == COUNTS
    for name, tokens in one.items():
        assert tokens.min() >= 0
        assert tokens.max() < 30
        assert np.array_equal(tokens, other[name])
    assert not np.array_equal(one["train"], another["train"])
    assert not np.array_equal(one["train"][:400], one["val"])


def test_a_token_says_something_about_the_next() -> None:
    tokens = made_up_texts(COUNTS, classes=30, seed=0).sets["train"]
    follows = (tokens[1:] == (tokens[:-1] + 1) % 30).mean()
    assert 0.25 < follows < 0.6
