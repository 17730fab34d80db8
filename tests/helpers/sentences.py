"""A small corpus of one's own, in files, with lengths that differ much."""

from pathlib import Path

import numpy as np

from lsgd.text.conll import read_tagged

KINDS = ("LOC", "PER")
SIZES = {"train": 54, "valid": 23, "test": 9}


def write_corpus(root: Path) -> None:
    """Files in which a word tells its tag, in IOB1, of sentences of 1 to 14 words."""
    root.mkdir(parents=True, exist_ok=True)
    for seed, (name, size) in enumerate(SIZES.items()):
        drawn = np.random.default_rng(seed)
        lengths = np.minimum(drawn.geometric(0.2, size), 14)
        sentences = [drawn.integers(0, 30, length) for length in lengths]
        texts = ("".join(f"W{word} {_tag(word)}\n" for word in words) for words in sentences)
        (root / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")


def _tag(word: int) -> str:
    if word % 3 == 0:
        return "O"
    return f"{'B' if word == 1 else 'I'}-{KINDS[word % 2]}"


def words_of(root: Path) -> list[str]:
    """The words of a recipe for this corpus."""
    counts = read_tagged(root, lowercase=True).counts
    return [f"data.root={root}", *(f"data.{name}={count}" for name, count in counts.items())]
