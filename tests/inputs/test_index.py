import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.folders import DATA, copy, in_shards, make_folder
from numpy.typing import NDArray

from lsgd import config
from lsgd.errors import Refused
from lsgd.inputs import open_inputs
from lsgd.inputs.index import Index, index_file, open_indexes, write_index
from lsgd.prepare.scan import index_folder
from lsgd.rules import sampler


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("made") / "root")


def row(path: str, label: int, size: int = 5) -> tuple[bytes, bytes, int, int, int, int, int]:
    return path.encode(), b"", 0, size, label, 40, 30


def test_ids_go_by_class_and_name(tmp_path: Path) -> None:
    """Whatever order they were found in; `n1-b` sorts before `n1/` but not as a class."""
    names = ["train/n1-b/a.JPEG", "train/n1/b.JPEG", "train/n1/a.JPEG", "train/n2/ä.JPEG"]
    labels = [1, 0, 0, 2]
    file = write_index(tmp_path, "train", map(row, names, labels))
    index = Index(tmp_path, file)
    order = [names[2], names[1], names[0], names[3]]
    assert [index.path(i) for i in range(4)] == [str(tmp_path / name) for name in order]
    assert index.labels(np.array([3, 0, 2])).tolist() == [2, 0, 1]
    assert index.sizes(np.array([1, 2])).tolist() == [[40, 30], [40, 30]]
    assert index.classes() == ["n1", "n1-b", "n2"]


def test_another_process_gets_the_file_and_not_the_rows(root: Path) -> None:
    """A million rows would be a hundred megabytes for each of many processes."""
    index = Index(root, index_file(root, "train"), ["train/n00/odd.JPEG"])
    assert isinstance(Index(root, index_file(root, "train")).rows, np.memmap)
    sent = pickle.dumps(index)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert len(received) == len(index) == 11
    assert [received.path(i) for i in range(11)] == [index.path(i) for i in range(11)]


@pytest.mark.parametrize("skipped", [[0], [11], [0, 1, 2], [3, 5, 6, 10], list(range(11))])
def test_the_others_close_ranks_around_skipped_images(root: Path, skipped: list[int]) -> None:
    """In order, each with what is its own, and still mapped."""
    whole = Index(root, index_file(root, "train"))
    paths = [os.fsdecode(path) for path in whole.paths(np.arange(12))]
    index = Index(root, index_file(root, "train"), [paths[i] for i in skipped])
    left = np.array([i for i in range(12) if i not in skipped])
    ids = np.arange(len(index))
    assert (len(index), index.skipped) == (len(left), len(skipped))
    assert index.paths(ids) == whole.paths(left)
    assert index.labels(ids).tolist() == whole.labels(left).tolist()
    assert index.lengths(ids[::-1]).tolist() == whole.lengths(left[::-1]).tolist()
    assert [index.path(i) for i in ids] == [whole.path(i) for i in left]
    assert [index.read(i) for i in ids] == [whole.read(i) for i in left]
    assert isinstance(index.rows, np.memmap)


def test_reads_what_the_file_has(root: Path, tmp_path: Path) -> None:
    shards = in_shards(root, tmp_path / "shards")
    for split in ("train", "val"):
        index, packed = (Index(r, index_file(r, split)) for r in (root, shards))
        assert not index.in_shards()
        assert packed.in_shards()
        for i in range(len(index)):
            assert index.read(i) == packed.read(i) == Path(index.path(i)).read_bytes()
            assert packed.path(i).endswith(index.path(i).removeprefix(str(root) + "/"))


def test_the_order_of_an_epoch_tells_nothing_of_the_next(tmp_path: Path) -> None:
    """Unlike a shuffle within a window, which leaves most images where they were."""
    rows = (row(f"train/n{i % 1000:04}/{i}.JPEG", i % 1000) for i in range(50_000))
    index = Index(tmp_path, write_index(tmp_path, "train", rows))
    assert len(index) == 50_000
    places = [
        np.argsort(sampler.epoch_order(len(index), seed=0, epoch=epoch)) for epoch in range(5)
    ]
    for one in range(5):
        assert sorted(places[one]) == list(range(50_000))
        for other in range(one):
            correlation = np.corrcoef(places[one], places[other])[0, 1]
            assert abs(correlation) < 4 / np.sqrt(50_000)


# --- What is refused before training ---------------------------------------------------------


def refusal(root: Path, **change: object) -> str:
    with pytest.raises(Refused) as refused:
        open_indexes(replace(DATA, **change), root)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_examples": 13}, "data.train_examples=13 but made at ROOT has 12; complete it and"),
        ({"val_examples": 7}, "data.val_examples=7 but made at ROOT has 6"),
        ({"classes": 4}, "data.classes=4 but made at ROOT has 3"),
        (
            {"skip": ["train/n00/none.JPEG"]},
            "data.skip names train/n00/none.JPEG, which ROOT/train",
        ),
        (
            {"skip": ["train/n00/odd.JPEG"], "train_examples": 10},
            "has 11 beside those left out; complete it and run python -m lsgd.prepare made ROOT, "
            "or write data.train_examples=12 for another trajectory (a skip list is taken off",
        ),
        ({"index": "/nowhere"}, "no index yet (/nowhere/train.index.npy is missing)"),
    ],
)
def test_another_dataset_than_the_recipes_is_refused(
    root: Path, change: dict[str, object], message: str
) -> None:
    assert message.replace("ROOT", str(root)) in refusal(root, **change)


def test_an_index_may_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    """As for a dataset that one may not write to."""
    index_folder(root, tmp_path / "index")
    train, val = open_indexes(replace(DATA, index=str(tmp_path / "index")), root)
    assert (len(train), len(val)) == (12, 6)
    assert train.read(0) == (root / "train" / "n00" / "cmyk.JPEG").read_bytes()


def other_class_to_validate(root: Path) -> None:
    (root / "val" / "n01").rename(root / "val" / "n03")
    index_folder(root)


def other_labels(change: NDArray[np.int32], root: Path) -> None:
    """Give the classes of the validation images these labels, in order."""
    rows = np.load(index_file(root, "val"))
    rows["label"] = change[rows["label"]]
    write_index(root, "val", rows.tolist())


def garbage(root: Path) -> None:
    index_file(root, "train").write_bytes(b"no numpy array")


def half(root: Path) -> None:
    file = index_file(root, "train")
    file.write_bytes(file.read_bytes()[:-100])


def new_image(root: Path) -> None:
    (root / "train" / "n01" / "new.JPEG").touch()


def lost_image(root: Path) -> None:
    (root / "val" / "n02" / "gray.JPEG").unlink()


def new_class(root: Path) -> None:
    (root / "train" / "n03").mkdir()
    (root / "train" / "n03" / "a.JPEG").touch()


def lost_class(root: Path) -> None:
    (root / "val" / "n02").rename(root / "n02")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (other_class_to_validate, "differ in their classes (n01, n03 …)"),
        pytest.param(
            partial(other_labels, np.array([0, 2, 1])),
            "val.index.npy number their classes differently (label 1 is n01 to train and n02 to v",
            id="labels-exchanged",
        ),
        pytest.param(
            partial(other_labels, np.array([1, 2, 3])),
            "(label 0 is n00 to train and None to valid",
            id="labels-moved",
        ),
        (garbage, "train.index.npy is no index"),
        (half, "train.index.npy is no index"),
        (new_image, "train.index.npy is older than ROOT: ROOT/train/n01/new.JPEG is new; "),
        (lost_image, "val.index.npy is older than ROOT: ROOT/val/n02/gray.JPEG is gone; "),
        (new_class, "train.index.npy is older than ROOT: ROOT/train/n03 is new; "),
        (lost_class, "val.index.npy is older than ROOT: ROOT/val/n02 is gone; "),
    ],
)
def test_what_changed_since_the_index_is_named(
    root: Path, tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    made = copy(root, tmp_path / "copy")
    open_indexes(DATA, made)
    harm(made)
    found = refusal(made)
    assert message.replace("ROOT", str(made)) in found
    assert f"run python -m lsgd.prepare made {made}" in found
    if " is older than " in message:
        index_folder(made)
        if harm is new_image:
            open_indexes(replace(DATA, train_examples=13), made)


def test_what_does_not_matter_is_no_change(root: Path, tmp_path: Path) -> None:
    """A copied folder is newer than its index; notes beside the images are no images."""
    made = copy(root, tmp_path / "copy")
    (made / "train" / "n00" / "notes.txt").touch()
    (made / "train" / "empty").mkdir()
    os.utime(made / "train" / "n00")
    os.utime(made / "val")
    assert [len(index) for index in open_indexes(DATA, made)] == [12, 6]


def test_one_process_looks_for_all(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 would ask a file system for a million names each."""
    made = copy(root, tmp_path / "copy")
    new_image(made)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    open_indexes(DATA, made)
    monkeypatch.setenv("RANK", "0")
    assert "new.JPEG is new" in refusal(made)


def test_shards_that_are_not_there_are_refused(root: Path, tmp_path: Path) -> None:
    shards = in_shards(root, tmp_path / "shards")
    with (shards / "val-000001.tar").open("rb+") as file:
        file.truncate(1000)
    assert f"{shards}/val-000001.tar is gone or shorter" in refusal(shards)
    (shards / "train-000000.tar").unlink()
    assert f"{shards}/train-000000.tar is gone or shorter" in refusal(shards)
    assert f"lsgd.prepare made FOLDER_OF_THE_IMAGES --shards {shards}" in refusal(shards)


def test_a_folder_that_is_not_there_is_refused_with_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSGD_DATA", "nowhere")
    recipe = config.load_recipe(["+recipe=bs8k"])
    with pytest.raises(Refused, match="no imagenet at nowhere/imagenet") as refused:
        open_inputs(recipe, torch.device("cpu"))
    for help_ in ("data.root=", "inputs=synthetic", "rehearse=true", "+recipe=digits"):
        assert help_ in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=digits", "inputs=torchvision"], "digits is not one; write inputs=memory"),
        (["+recipe=digits", "inputs=dali"], "digits is not one; write inputs=memory"),
        (["+recipe=bs256", "inputs=memory"], "and not imagenet; write inputs=auto"),
        (["+recipe=bs256", "data.augmentation=shift_flip"], "shift_flip is for small images"),
        (["+recipe=digits", "data.skip=[train/a/b]"], "data.skip is for image folders"),
        (["+recipe=digits", "data.augmentation=crop_flip"], "crop_flip is for image folders"),
    ],
)
def test_a_loader_that_does_not_suit_the_dataset_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(Refused, match=message):
        open_inputs(config.load_recipe(words), torch.device("cpu"))
