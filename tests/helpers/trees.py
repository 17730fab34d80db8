"""A small synthetic corpus of labelled trees of widely different sizes and shapes."""

from pathlib import Path

import numpy as np

from lsgd.text.sst import read_tree_corpus

SIZES = {"train": 54, "dev": 23, "test": 9}


def write_trees(root: Path) -> None:
    """Write a corpus of trees of 1 to 14 words, where the first word determines the class.

    Each word contains a no-break space. Some words of dev and test are not in train.
    """
    root.mkdir(parents=True, exist_ok=True)
    for seed, (name, size) in enumerate(SIZES.items()):
        drawn = np.random.default_rng(seed)
        lengths = np.minimum(drawn.geometric(0.2, size), 14)
        lines = (_grown(drawn.integers(0, 30 + 10 * seed, length), drawn) for length in lengths)
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _grown(words: np.ndarray, drawn: np.random.Generator) -> str:
    nodes = [f"({word % 5} {word}\u00a0th)" for word in words]
    while len(nodes) > 1:
        at = drawn.integers(len(nodes) - 1)
        left, right = nodes[at : at + 2]
        nodes[at : at + 2] = [f"({left[1]} {left} {right})"]
    return nodes[0]


def corpus_overrides(root: Path) -> list[str]:
    """Return the recipe overrides for this tree corpus: its root and its counts."""
    counts = read_tree_corpus(root, lowercase=False).counts
    words = [f"data.{name}={count}" for name, count in counts.items()]
    return [f"data.root={root}", "data.lowercase=false", *words]
