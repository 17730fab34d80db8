"""Trees are read as they stand, and errors are named by file and line."""

from pathlib import Path

import numpy as np
import pytest
from helpers.composed import compose_recipe
from hypothesis import given
from hypothesis import strategies as st

from lsgd.text.sst import ABSENT, UNKNOWN, Tree, parse, read_tree_corpus, read_trees

TRAIN = "(3 (2 It) (4 (2 's) (1 good)))\n(2 Yes)\n"
TREES = [
    Tree(["It", "'s", "good", "", ""], [-1, -1, -1, 1, 0], [-1, -1, -1, 2, 3], [2, 2, 1, 4, 3]),
    Tree(["Yes"], [-1], [-1], [2]),
]


def corpus(root: Path, train: str = TRAIN, dev: str = "(1 (0 No) (2 yes))\n", **files: str) -> Path:
    """A folder with these files."""
    for name, text in {"train": train, "dev": dev, **files}.items():
        (root / f"{name}.txt").write_text(text, encoding="utf-8")
    return root


def test_a_file_is_what_it_says(tmp_path: Path) -> None:
    """With other ends of lines, an empty line and more spaces too."""
    path = corpus(tmp_path) / "train.txt"
    assert [*read_trees(path)] == TREES
    path.write_bytes(TRAIN.replace("\n", "\r\n").replace("(", " (  ").encode() + b"\r\n \r\n")
    assert [*read_trees(path)] == TREES


def test_a_word_may_have_any_space_but_one(tmp_path: Path) -> None:
    path = corpus(tmp_path, "(2 (2 8\u00a01\\/2) (2 mi\u2028les\x85\tlong))\n") / "train.txt"
    (tree,) = read_trees(path)
    assert tree.words == ["8\u00a01\\/2", "mi\u2028les\x85\tlong", ""]


LEAF = st.tuples(st.integers(0, 999), st.text("ab-\u00a0\\/é", min_size=1))
SHAPES = st.recursive(LEAF, lambda below: st.tuples(st.integers(0, 4), below, below))


def written(shape: tuple) -> str:
    return f"({' '.join(written(p) if isinstance(p, tuple) else str(p) for p in shape)})"


def shape_of(tree: Tree, place: int) -> tuple:
    if tree.left[place] == ABSENT:
        return tree.labels[place], tree.words[place]
    children = (shape_of(tree, side[place]) for side in (tree.left, tree.right))
    return tree.labels[place], *children


@given(SHAPES)
def test_any_tree_is_read_as_it_was_written(shape: tuple) -> None:
    tree = parse(written(shape))
    assert shape_of(tree, len(tree.labels) - 1) == shape
    for place, (left, right) in enumerate(zip(tree.left, tree.right, strict=True)):
        assert left == right == ABSENT or 0 <= left < right < place


def test_words_are_those_of_the_training_set_and_classes_of_all(tmp_path: Path) -> None:
    read = read_tree_corpus(corpus(tmp_path), lowercase=False)
    assert read.words == ("'s", "It", "Yes", "good")
    assert read.counts == {
        "train_examples": 2, "val_examples": 1, "test_examples": 0, "classes": 5, "words": 5,
    }  # fmt: skip
    train = read.sets["train"]
    assert [*train.words] == [2, 1, 4, ABSENT, ABSENT, 3]
    assert [*train.left] == [-1, -1, -1, 1, 0, -1]
    assert [*train.right] == [-1, -1, -1, 2, 3, -1]
    assert [*train.labels] == [2, 2, 1, 4, 3, 2]
    assert ([*train.lengths], [*train.begins]) == ([5, 1], [0, 5])
    assert [*read.sets["val"].words] == [UNKNOWN, UNKNOWN, ABSENT]
    assert len(read.sets["test"].labels) == 0


def test_in_lower_case_more_words_are_known(tmp_path: Path) -> None:
    read = read_tree_corpus(corpus(tmp_path, test="(2 IT)"), lowercase=True)
    assert read.words == ("'s", "good", "it", "yes")
    assert [*read.sets["val"].words] == [UNKNOWN, 4, ABSENT]
    assert [*read.sets["test"].words] == [3]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("(2 (2 a) (1 b)", r"has brackets that are not closed \(1\), and needs all of them"),
        ("(2 (2 a) (1 b)))", "is not one tree, such as"),
        ("(2 a) (2 b)", "is not one tree, such as"),
        ("word", "is not one tree, such as"),
        ("(2 a b)", r"has \(2 a b\), which is neither \(LABEL WORD\) nor \(LABEL TREE TREE\)"),
        ("(2 ((1 a) (1 b)) (1 c))", r"has \(TREE TREE\), which is neither"),
        ("(2 (1 a) (1 b) (1 c))", r"has \(2 TREE TREE TREE\), which is neither"),
        ("(2 (1 a))", r"has \(2 TREE\), which is neither"),
        ("()", r"has \(\), which is neither"),
        ("(positive a)", "has a node with the label 'positive', and needs 0, 1, …"),
        ("(-1 a)", "has a node with the label '-1'"),
        ("(\u0663 a)", "has a node with the label '\u0663'"),
        ("(1000 a)", "has a node with the label '1000'"),
    ],
)
def test_an_error_has_file_and_line(tmp_path: Path, line: str, sentence: str) -> None:
    path = corpus(tmp_path, f"(2 a)\n\n{line}\n") / "train.txt"
    with pytest.raises(ValueError, match=rf"^train\.txt, line 3, {sentence}"):
        [*read_trees(path)]


def test_only_a_test_set_may_be_missing(tmp_path: Path) -> None:
    (corpus(tmp_path) / "dev.txt").unlink()
    with pytest.raises(FileNotFoundError):
        read_tree_corpus(tmp_path, lowercase=False)


@pytest.mark.slow
@pytest.mark.data
def test_sst_has_its_published_counts(test_data: Path) -> None:
    """Socher et al. 2013, section 5, and the classes that are not neutral: 6920, 872 and 1821."""
    read = read_tree_corpus(test_data / "sst", lowercase=False)
    assert (len(read.words), read.classes) == (18_280, 5)
    of_the_recipe = compose_recipe("+recipe=sst_treelstm").data  # which has all in lower case
    in_lower_case = read.counts | {"words": 1 + len({word.lower() for word in read.words})}
    assert {name: getattr(of_the_recipe, name) for name in read.counts} == in_lower_case
    expected = {
        "train": (8544, 318582, 163563, [1092, 2218, 1624, 2322, 1288]),
        "val": (1101, 41447, 21274, [139, 289, 229, 279, 165]),
        "test": (2210, 82600, 42405, [279, 633, 389, 510, 399]),
    }
    for name, (trees, nodes, leaves, roots) in expected.items():
        own = read.sets[name]
        assert (len(own.lengths), len(own.labels)) == (trees, nodes)
        assert (own.words != ABSENT).sum() == (own.left == ABSENT).sum() == leaves
        last = own.begins + own.lengths - 1
        assert np.bincount(own.labels[last]).tolist() == roots
        # Each node but the root is the child of one other.
        assert (own.left != ABSENT).sum() * 2 == nodes - trees
    assert sum("\u00a0" in word for word in read.words) > 0
