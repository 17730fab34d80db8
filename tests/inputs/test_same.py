"""Processes with different copies of the data are refused, and so is a run on other data."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import learner_after, recipe
from helpers.folders import DATA, LOADERS, copy, make_folder, write_folder_shards
from helpers.folders import open_folder_inputs as opened_folder
from helpers.threaded import ThreadComm, run_on_threads
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import evaluate_path
from lsgd.inputs import ExampleColumns
from lsgd.inputs.consistency import check_same_data, open_consistent_inputs
from lsgd.learner import Learner
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.run import checkpoint
from lsgd.text.conll import read_tagged_corpus
from lsgd.text.ptb import read_texts
from lsgd.text.sst import read_tree_corpus


class Listed:
    """Inputs that have these columns and no examples."""

    name = "a list"

    def __init__(self, columns: ExampleColumns) -> None:
        self._columns = columns

    def columns(self) -> ExampleColumns:
        return self._columns

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        return iter(())

    evaluation = train


def opened(*copies: ExampleColumns) -> list[dict[str, str]]:
    """The digests that the processes of a job have, each with a copy of its own."""

    def body(comm: ThreadComm) -> dict[str, str]:
        return open_consistent_inputs(comm, lambda: Listed(copies[comm.rank]))[1]

    return run_on_threads(len(copies), body)


def opened_for(*recipes: Recipe, copies: Sequence[ExampleColumns] = ()) -> list[dict[str, str]]:
    """The digests that the processes of a job have, each with a recipe of its own."""

    def body(comm: ThreadComm) -> dict[str, str]:
        listed = Listed(copies[comm.rank] if copies else made())
        return open_consistent_inputs(comm, lambda: listed, recipes[comm.rank])[1]

    return run_on_threads(len(recipes), body)


def test_parts_of_another_source_are_refused() -> None:
    """On all processes, before the data are compared, and the digests have nothing of them."""
    first = recipe()
    optims = [replace(first.optim, name="mine:Rule", source=source) for source in ("abc", "def")]
    one, other = (replace(first, optim=optim) for optim in optims)
    assert opened_for(one, one) == opened(made(), made())
    with pytest.raises(
        UsageError, match="process 1 has another source of optim=mine:Rule than pro"
    ):
        opened_for(one, other)


def test_processes_with_another_recipe_are_refused() -> None:
    """By the first field in which one differs from process 0, with both of its values."""
    host = platform.node()
    assert opened_for(recipe(), recipe("device=cpu", "threads=2")) == opened(made(), made())
    others = recipe(), recipe("seed=5", "log_steps=3")
    said = (
        f"process 2 on {host} has seed=5 and process 0 on {host} has seed=0; start all processes "
        "of the job with the same command line and the same files"
    )
    with pytest.raises(UsageError) as caught:
        opened_for(recipe(), *others)
    assert str(caught.value) == said


def test_where_the_files_differ_too_the_first_of_them_is_named() -> None:
    """The numbers of examples of a folder are read from its index, and so differ with it."""
    first, fewer = recipe(), made()
    shorter = replace(first, data=replace(first.data, train_examples=19))
    fewer["train path"], fewer["train label"] = fewer["train path"][1:], fewer["train label"][1:]
    with pytest.raises(UsageError, match=r"reads other data .* from row 0 of train path on"):
        opened_for(first, shorter, copies=[made(), fewer])
    with pytest.raises(UsageError, match=r"has data\.train_examples=19 and process 0"):
        opened_for(first, shorter)
    with pytest.raises(UsageError, match="has seed=5 and process 0"):
        opened_for(first, replace(shorter, seed=5), copies=[made(), fewer])


def made() -> ExampleColumns:
    return {
        "train path": np.array([f"train/a/{i}.png".encode() for i in range(20)]),
        "train label": np.arange(20) // 5,
        "val label": np.arange(6),
    }


def test_equal_copies_have_equal_digests() -> None:
    first, *others = opened(made(), made(), made())
    assert first == others[0] == others[1]
    assert len(set(first.values())) == 3


@given(st.integers(0, 19), st.integers(1, 2))
def test_the_first_row_that_differs_is_named(row: int, rank: int) -> None:
    copies = [made() for _ in range(3)]
    copies[rank]["train label"][row:] += 7
    with pytest.raises(UsageError) as refused:
        opened(*copies)
    label = row // 5
    host = os.uname().nodename
    assert str(refused.value).startswith(
        f"process {rank} on {host} reads other data than process 0 on {host}, from row {row} of "
        f"train label on (path train/a/{row}.png, label {label + 7}; process 0: path "
        f"train/a/{row}.png, label {label}); use the same files in data.root on all machines"
    )


def test_a_row_more_is_a_difference() -> None:
    more = made()
    more["val label"] = np.arange(7)
    with pytest.raises(UsageError, match="from row 6 of val label on") as refused:
        opened(made(), more)
    assert "(label 6; process 0: missing)" in str(refused.value)


@pytest.mark.parametrize("loader", LOADERS)
def test_an_image_folder_is_its_names_labels_and_sizes(loader: str, tmp_path: Path) -> None:
    """In shards or not, and whatever was left out of it; two exchanged classes are others."""
    root = make_folder(tmp_path / "root")
    plain = digests(loader, root)
    assert digests(loader, copy(root, tmp_path / "copy")) == plain
    assert digests(loader, write_folder_shards(root, tmp_path / "shards")) == plain

    other = copy(root, tmp_path / "other")
    (other / "train" / "n00").rename(other / "n00")
    (other / "train" / "n01").rename(other / "train" / "n00")
    (other / "n00").rename(other / "train" / "n01")
    index_folder(other)
    changed = {name for name, digest in digests(loader, other).items() if digest != plain[name]}
    assert changed == {"train bytes"}

    Image.new("RGB", (9, 9)).save(other / "train" / "n00" / "odd.JPEG")
    index_folder(other)
    skip = ["train/n00/odd.JPEG"]
    without = replace(DATA, skip=skip, train_examples=11)
    assert digests(loader, root, without).keys() == plain.keys()
    assert digests(loader, root, without)["train path"] != plain["train path"]


def digests(loader: str, root: Path, data: Any = DATA) -> dict[str, str]:
    return open_consistent_inputs(SingleComm(), lambda: opened_folder(root, loader, data))[1]


def test_texts_are_all_that_is_read_of_them(tmp_path: Path) -> None:
    files = {
        "own.train.txt": "a b a\n", "own.valid.txt": "a b\n",
        "train.txt": "EU I-ORG\na O\n\n", "valid.txt": "EU O\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    texts = read_texts(tmp_path, "own").columns
    assert texts["train tokens"].tolist() == [0, 2, 0, 1]
    assert texts["vocabulary words"].tolist() == ["a", "<eos>", "b"]
    tagged = read_tagged_corpus(tmp_path, lowercase=False).columns
    assert {name for name in tagged if name.startswith("val")} == {
        "val words", "val tags", "val lengths",
    }  # fmt: skip
    assert tagged["vocabulary tags"].tolist() == ["O", "I-ORG"]
    (tmp_path / "dev.txt").write_text("(2 a)\n")
    (tmp_path / "train.txt").write_text("(2 (1 a) (3 b))\n")
    trees = read_tree_corpus(tmp_path, lowercase=False).columns
    assert trees["train labels"].tolist() == [1, 3, 2]
    # Each column can be told from another one of the same rows.
    for columns in (texts, tagged, trees):
        opened(columns, columns)


def test_what_lies_in_memory_is_compared_with_its_pixels() -> None:
    inputs, known = open_consistent_inputs(SingleComm(), recipe_inputs)
    assert sorted(known) == ["train labels", "train pixels", "val labels", "val pixels"]
    pixels = inputs.columns()["train pixels"].copy()
    pixels[3, 0, 2, 2] ^= 1
    with pytest.raises(UsageError, match="from row 3 of train pixels on"):
        opened(inputs.columns(), inputs.columns() | {"train pixels": pixels})


def recipe_inputs() -> Any:
    return Learner(recipe("inputs=auto"), SingleComm(), torch.device("cpu")).workload.inputs()


def test_a_run_goes_on_with_its_own_data_alone(tmp_path: Path) -> None:
    """And one that is older than the digests goes on with any."""
    cpu, own = torch.device("cpu"), {"train labels": "a", "val labels": "b"}
    saved = replace(learner_after(recipe(), 0, 1).checkpoint(), data=own)
    Learner(recipe(), SingleComm(), cpu, own).restore(saved)
    Learner(recipe(), SingleComm(), cpu, own).restore(replace(saved, data={}))
    learner = Learner(recipe(), SingleComm(), cpu, own | {"val labels": "c"})
    with pytest.raises(UsageError, match=r"val labels differ; use the same files in data\.root as"):
        learner.restore(saved)
    assert learner.checkpoint().data == own | {"val labels": "c"}
    with pytest.raises(UsageError, match="train labels, test labels differ"):
        check_same_data(own, {"val labels": "b", "test labels": "d"})


def test_a_checkpoint_is_evaluated_on_its_own_data_alone(tmp_path: Path) -> None:
    made = recipe("inputs=auto")
    cpu = torch.device("cpu")
    _, own = open_consistent_inputs(SingleComm(), recipe_inputs)
    saved = Learner(made, SingleComm(), cpu, own).checkpoint()
    checkpoint.write(saved, tmp_path)
    assert evaluate_path(tmp_path)["val"].counts["images"] == made.data.val_examples
    checkpoint.write(replace(saved, data=own | {"val labels": "0"}), tmp_path)
    with pytest.raises(
        UsageError, match=r"are not those that the run was trained on: val labels differ"
    ):
        evaluate_path(tmp_path)
