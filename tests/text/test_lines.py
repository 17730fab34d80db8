"""What an editor adds to a text changes no number of any corpus."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.composed import compose_recipe
from helpers.sentences import write_corpus
from helpers.trees import write_trees

from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.prepare.published import PUBLISHED
from lsgd.recipe import Data
from lsgd.text import FETCHED, read_corpus, read_lines
from lsgd.text.conll import open_tagged_corpus, read_tagged_corpus
from lsgd.text.ptb import read_texts
from lsgd.text.sst import open_tree_corpus, read_tree_corpus

Numbers = list[object]

LANGUAGE = {"own.train.txt": "the cat\n\nsat <unk>\n", "own.valid.txt": "the dog\n"}
TAGGED = {"train.txt": "-DOCSTART- O\n\nEU I-ORG\nsat O\n\nPeter I-PER\n", "valid.txt": "EU O\n"}
TREES = {"train.txt": "(3 (2 It) (4 good))\n(2 Yes)\n", "dev.txt": "(2 It)\n"}

EDITS: dict[str, Callable[[str], str]] = {
    "byte-order mark": lambda text: "\ufeff" + text,
    "ends of lines": lambda text: text.replace("\n", "\r\n"),
    "old ends of lines": lambda text: text.replace("\n", "\r"),
    "doubled ends of lines": lambda text: text.replace("\n", "\r\r\n"),
    "blanks": lambda text: text.replace("\n", " \t\n"),
    "empty lines": lambda text: text + "\n \n\t\n\n",
    "no last end of a line": lambda text: text.rstrip("\n"),
    "all": lambda text: "\ufeff" + text.replace("\n", " \t \r\n") + "\r\n \r\n",
}


def language(root: Path) -> Numbers:
    texts = read_texts(root, "own")
    return [texts.vocabulary, *map(np.ndarray.tolist, texts.sets.values())]


def tagged(root: Path) -> Numbers:
    corpus = read_tagged_corpus(root, lowercase=False)
    sets = [[s.words.tolist(), s.tags.tolist(), s.lengths.tolist()] for s in corpus.sets.values()]
    return [corpus.words, corpus.tags, corpus.counts, sets]


def trees(root: Path) -> Numbers:
    corpus = read_tree_corpus(root, lowercase=False)
    sets = [[s.words.tolist(), s.labels.tolist(), s.lengths.tolist()] for s in corpus.sets.values()]
    return [corpus.words, corpus.classes, corpus.counts, sets]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    ("files", "read"),
    [(LANGUAGE, language), (TAGGED, tagged), (TREES, trees)],
    ids=["language", "tagging", "trees"],
)
def test_an_edited_text_has_the_numbers_of_the_clean_one(
    tmp_path: Path, files: dict[str, str], read: Callable[[Path], Numbers], edit: str
) -> None:
    clean, edited = tmp_path / "clean", tmp_path / "edited"
    for folder in (clean, edited):
        folder.mkdir()
    for name, text in files.items():
        (clean / name).write_bytes(text.encode())
        (edited / name).write_bytes(EDITS[edit](text).encode())
    assert read(edited) == read(clean)


def test_an_empty_line_within_a_text_stays(tmp_path: Path) -> None:
    for name, text in LANGUAGE.items():
        (tmp_path / name).write_text(text)
    assert read_texts(tmp_path, "own").sets["train"].tolist().count(0) == 3


@pytest.mark.parametrize("read", [read_tagged_corpus, read_tree_corpus])
def test_a_corrected_corpus_is_read_again(tmp_path: Path, read: Callable[..., Any]) -> None:
    """A corpus in a notebook's process, which reads an unchanged one once."""
    files = TAGGED if read is read_tagged_corpus else TREES
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = read(tmp_path, lowercase=False)
    assert read(tmp_path, lowercase=False) is before
    (tmp_path / "train.txt").write_text(files["train.txt"] * 2)
    assert read(tmp_path, lowercase=False).counts["train_examples"] == 4
    assert read(tmp_path, lowercase=False).words == before.words


def test_a_word_has_at_most_10000_characters(tmp_path: Path) -> None:
    """An array of the vocabulary is as wide as its longest word, 40 GB with one of 1 MB."""
    file = tmp_path / "train.txt"
    file.write_text("a\n(2 " + "b" * 10_000 + f") {'c ' * 9_000}")
    assert len(read_lines(file)) == 2
    file.write_text("a\n(2 " + "b" * 10_001 + ")")
    message = "train.txt, line 2, has a word of 10,001 characters, and at most 10,000 are possible"
    with pytest.raises(ValueError, match=message):
        read_lines(file)


@pytest.mark.parametrize("edited", [0, 1])
@pytest.mark.parametrize(
    ("files", "read"),
    [(LANGUAGE, language), (TAGGED, tagged), (TREES, trees)],
    ids=["language", "tagging", "trees"],
)
def test_an_empty_text_is_named(
    tmp_path: Path, files: dict[str, str], read: Callable[[Path], Numbers], edited: int
) -> None:
    """Its counts of 0 would be those of no possible recipe."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    empty = [*files][edited]
    (tmp_path / empty).write_text("\n")
    with pytest.raises(ValueError, match=f"^{empty} is empty"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "write", "read", "missing", "file", "text", "error"),
    [
        (
            "conll_bilstm", write_corpus, open_tagged_corpus,
            "eng.train is missing; run `python -m lsgd.prepare conll2003", "valid.txt", "word\n",
            "valid.txt, line 1, has 'word' alone",
        ),
        (
            "sst_treelstm", write_trees, open_tree_corpus,
            "train.txt is missing; run `python -m lsgd.prepare sst", "dev.txt", "(2 a\n",
            "dev.txt, line 1, has brackets that are not closed (1)",
        ),
    ],
)  # fmt: skip
def test_a_missing_another_or_broken_corpus_is_refused(
    tmp_path: Path, recipe: str, write: Callable[[Path], None], read: Callable[[Data], Any],
    missing: str, file: str, text: str, error: str,
) -> None:  # fmt: skip
    """The words in the refusal of another corpus make its recipe."""
    words = [f"+recipe={recipe}", f"data.root={tmp_path}"]
    data = compose_recipe(*words).data
    with pytest.raises(UsageError, match=re.escape(missing)):
        read(data)
    write(tmp_path)
    with pytest.raises(UsageError, match="differs from the recipe") as refused:
        read(data)
    remedy = re.findall(r"data\.\S+(?= )", str(refused.value).partition(" write ")[2])
    read(compose_recipe(*words, *remedy).data)
    (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=re.escape(error)):
        read(data)


@pytest.mark.slow
def test_only_the_published_corpora_are_fetched(tmp_path: Path) -> None:
    """And none into a folder with texts."""
    assert {*FETCHED} == {each.name for each in PUBLISHED} - {*IN_MEMORY_DATASETS}
    recipes = {"conll2003": "conll_bilstm", "ptb": "ptb_small", "sst": "sst_treelstm"}
    for name, recipe in recipes.items():
        for data, advice in ((name, "run `python -m lsgd.prepare"), ("mine", "put it there, or")):
            words = [f"+recipe={recipe}", f"data.name={data}", f"data.root={tmp_path}"]
            with pytest.raises(UsageError, match=f"is missing; {advice}"):
                read_corpus(load_recipe(words).data, _missing)
    (tmp_path / "eng.train").write_text("EU O\n")
    with pytest.raises(UsageError, match="is missing; put it there, or"):
        read_corpus(load_recipe(["+recipe=conll_bilstm", words[-1]]).data, _missing)


def _missing(root: Path) -> None:
    raise FileNotFoundError(2, "No such file", str(root / "train"))
