"""A small synthetic corpus of tagged sentences of widely different lengths."""

from pathlib import Path

import numpy as np

from lsgd.text.conll import read_tagged_corpus

KINDS = ("LOC", "PER")
SIZES = {"train": 54, "valid": 23, "test": 9}


def write_corpus(root: Path) -> None:
    """Write a corpus of sentences of 1 to 14 words whose IOB1 tags are a function of the word."""
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


def corpus_overrides(root: Path) -> list[str]:
    """Return the recipe overrides for this corpus: its root and its counts."""
    counts = read_tagged_corpus(root, lowercase=True).counts
    return [f"data.root={root}", *(f"data.{name}={count}" for name, count in counts.items())]
