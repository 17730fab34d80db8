"""Tagged sentences are read as they stand, and errors are named by file and line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe

from lsgd.text.conll import DOCUMENT, UNKNOWN, read_sentences, read_tagged_corpus
from lsgd.text.spans import SpanCounts

TRAIN = f"""{DOCUMENT} -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter\tNNP\tI-PER
Blackburn\tNNP\tI-PER
"""


def corpus(root: Path, train: str = TRAIN, val: str = "eu O\nZZ B-LOC\n", **files: str) -> Path:
    """A folder with these files, under the names of copies."""
    root.mkdir(exist_ok=True)
    for name, text in {"train": train, "valid": val, **files}.items():
        (root / f"{name}.txt").write_text(text, encoding="utf-8")
    return root


def test_a_file_is_what_it_says(tmp_path: Path) -> None:
    """Whatever is between word and tag, with an empty line at its end or without."""
    path = corpus(tmp_path) / "train.txt"
    sentences = [
        (("EU", "rejects"), ("I-ORG", "O")),
        (("Peter", "Blackburn"), ("I-PER", "I-PER")),
    ]
    assert [*read_sentences(path)] == sentences
    path.write_bytes(TRAIN.rstrip().replace("\n", "\r\n").encode())
    assert [*read_sentences(path)] == sentences


def test_a_word_may_have_any_space_that_parts_no_columns(tmp_path: Path) -> None:
    path = corpus(tmp_path, "12\u00a0000 CD I-MISC\nmi\u2028les NN O\n") / "train.txt"
    assert [*read_sentences(path)] == [(("12\u00a0000", "mi\u2028les"), ("I-MISC", "O"))]


def test_words_are_those_of_the_training_set_and_tags_of_all(tmp_path: Path) -> None:
    read = read_tagged_corpus(corpus(tmp_path), lowercase=False)
    assert read.words == ("Blackburn", "EU", "Peter", "rejects")
    assert read.tags == ("O", "B-LOC", "I-ORG", "I-PER")
    assert read.counts == {
        "train_examples": 2, "val_examples": 1, "test_examples": 0, "classes": 4, "words": 5,
    }  # fmt: skip
    train = read.sets["train"]
    assert [*train.words] == [2, 4, 3, 1]
    assert [*train.tags] == [2, 0, 3, 3]
    assert ([*train.lengths], [*train.begins]) == ([2, 2], [0, 2])
    assert [*read.sets["val"].words] == [UNKNOWN, UNKNOWN]
    assert len(read.sets["test"].words) == 0


def test_in_lower_case_more_words_are_known(tmp_path: Path) -> None:
    read = read_tagged_corpus(corpus(tmp_path, test="Rejects O\n"), lowercase=True)
    assert read.words == ("blackburn", "eu", "peter", "rejects")
    assert [*read.sets["val"].words] == [2, UNKNOWN]
    assert [*read.sets["test"].words] == [4]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("EU O\nrejects\n", "train.txt, line 2, has 'rejects' alone and needs a word and its tag"),
        ("EU O\n\n\ncall NN\n", "train.txt, line 4, ends with 'NN' and needs a tag: O, B-KIND"),
        ("EU S-ORG\n", "train.txt, line 1, ends with 'S-ORG'"),
        ("EU I-\n", "train.txt, line 1, ends with 'I-'"),
    ],
)
def test_an_error_has_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        [*read_sentences(corpus(tmp_path, text) / "train.txt")]


def test_an_other_encoding_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path) / "train.txt"
    path.write_bytes("EU O\n\ncaf\xe9 O\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train.txt, line 3, is not in UTF-8"):
        [*read_sentences(path)]


def test_files_of_two_corpora_are_not_mixed(tmp_path: Path) -> None:
    corpus(tmp_path, test="eu O\n")
    (tmp_path / "eng.train").write_text("EU O\n")
    with pytest.raises(ValueError, match=r"it has eng\.train and train\.txt; keep one"):
        read_tagged_corpus(tmp_path, lowercase=False)


@pytest.mark.slow
@pytest.mark.data
def test_conll_2003_has_its_published_counts(test_data: Path) -> None:
    """Tjong Kim Sang and De Meulder 2003, tables 1 and 2."""
    read = read_tagged_corpus(test_data / "conll2003", lowercase=True)
    of_the_recipe = compose_recipe("+recipe=conll_bilstm").data
    assert {name: getattr(of_the_recipe, name) for name in read.counts} == read.counts
    published = {
        "train": (14041, 203621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        "val": (3250, 51362, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
        "test": (3453, 46435, {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}),
    }
    for name, (sentences, tokens, spans) in published.items():
        own = read.sets[name]
        assert (len(own.lengths), len(own.words), own.lengths.sum()) == (sentences, tokens, tokens)
        number = torch.from_numpy(np.repeat(np.arange(sentences), own.lengths))
        for kind, count in spans.items():
            # The tags of one kind alone.
            alone = [tag if tag.endswith(kind) else "O" for tag in read.tags]
            tags = torch.from_numpy(own.tags)
            counted = SpanCounts(alone, torch.device("cpu")).count(tags, tags, number)
            assert [each.item() for each in counted] == [count] * 3
