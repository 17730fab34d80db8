"""Texts: how words become numbers, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.composed import compose_recipe

from lsgd.errors import UsageError
from lsgd.recipe import Data
from lsgd.text.ptb import open_texts


def text(root: Path, name: str, content: str) -> None:
    (root / f"own.{name}.txt").write_text(content, encoding="utf-8")


@pytest.fixture
def own(tmp_path: Path) -> Data:
    """A text of one's own, with a word that only the validation text has."""
    text(tmp_path, "train", " the cat\tsaw <unk> \n the cat sat\n")
    text(tmp_path, "valid", "the dog sat\n")
    return Data("own", 9, 4, 6, root=str(tmp_path), workload="language", window=2)


def test_a_token_is_a_word_or_the_end_of_a_line(own: Data) -> None:
    texts = open_texts(own)
    # The most frequent ones first; among equals the alphabet decides, on every machine alike.
    assert texts.vocabulary == ["<eos>", "cat", "the", "<unk>", "sat", "saw"]
    assert texts.sets["train"].tolist() == [2, 1, 5, 3, 0, 2, 1, 4, 0]
    assert texts.sets["val"].tolist() == [2, 3, 4, 0]
    assert texts.sets["test"].tolist() == []


def test_what_the_recipe_does_not_say_is_said_with_the_words_that_do(own: Data) -> None:
    text(Path(own.root or ""), "train", "one two\n")
    with pytest.raises(UsageError, match=r"cannot be read .own\.valid\.txt has the word 'the'"):
        open_texts(own)
    text(Path(own.root or ""), "valid", "two\n")
    with pytest.raises(
        UsageError,
        match=r"has data.train_examples=9, data.val_examples=4, data.classes=6; complete it, or "
        r"write data.train_examples=3 data.val_examples=2 data.classes=3 for another",
    ):
        open_texts(own)


def test_what_cannot_be_read(own: Data) -> None:
    root = Path(own.root or "")
    (root / "own.valid.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(
        UsageError, match=r"own at .* cannot be read \(own.valid.txt, line 1, is not in UTF-8\)"
    ):
        open_texts(own)
    (root / "own.valid.txt").unlink()
    os.mkfifo(root / "own.valid.txt")
    with pytest.raises(UsageError, match=r"cannot be read .*it is not a regular file"):
        open_texts(own)
    (root / "own.valid.txt").unlink()
    with pytest.raises(
        UsageError, match=r"no own at .*own\.valid\.txt is missing; put it there, or"
    ):
        open_texts(own)


@pytest.mark.slow
@pytest.mark.data
def test_penn_treebank(test_data: Path) -> None:
    recipe = compose_recipe("+recipe=ptb_small", f"data.root={test_data / 'ptb'}")
    texts = open_texts(recipe.data)  # which refuses other counts than the recipe's
    assert [len(tokens) for tokens in texts.sets.values()] == [929_589, 73_760, 82_430]
    assert len(texts.vocabulary) == 10_000
    assert texts.vocabulary[:3] == ["the", "<unk>", "<eos>"]
    assert (texts.sets["train"] == 1).sum() == 45_020
    types = [len(np.unique(texts.sets[name])) for name in ("val", "test")]
    assert types == [6_022, 6_049]
