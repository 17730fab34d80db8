import errno
import io
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.folders import DATA, copy, write_folder_shards
from numpy.typing import NDArray

from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs import _check_kind, open_inputs
from lsgd.inputs.consistency import _digest
from lsgd.inputs.index import ImageIndex, index_file, open_indexes, renewal_command, write_index
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import InputsSettings


def row(path: str, label: int, size: int = 5) -> tuple[bytes, bytes, int, int, int, int, int]:
    return path.encode(), b"", 0, size, label, 40, 30


def test_ids_go_by_class_and_name(tmp_path: Path) -> None:
    """Whatever order they were found in; `n1-b` sorts before `n1/` but not as a class."""
    names = ["train/n1-b/a.JPEG", "train/n1/b.JPEG", "train/n1/a.JPEG", "train/n2/ä.JPEG"]
    labels = [1, 0, 0, 2]
    file = write_index(tmp_path, "train", map(row, names, labels))
    index = ImageIndex(tmp_path, file)
    order = [names[2], names[1], names[0], names[3]]
    assert [index.path(i) for i in range(4)] == [str(tmp_path / name) for name in order]
    assert index.labels(np.array([3, 0, 2])).tolist() == [2, 0, 1]
    assert index.sizes(np.array([1, 2])).tolist() == [[40, 30], [40, 30]]
    assert index.classes() == ["n1", "n1-b", "n2"]


@pytest.mark.parametrize("rows", [2085, 20000])
def test_a_full_disk_leaves_the_index_as_it_was(rows: int, tmp_path: Path) -> None:
    """Also if it is full near the end: numpy has not noticed that, and a torn index replaced it."""
    file = write_index(tmp_path, "train", [row("train/n1/0.JPEG", 0)])
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"File too large.*{file.name}") as raised:
            write_index(tmp_path, "train", [row(f"train/n1/{i:05}.JPEG", 0) for i in range(rows)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_another_process_gets_the_file_and_not_the_rows(root: Path) -> None:
    """A million rows would be a hundred megabytes for each of many processes."""
    index = ImageIndex(root, index_file(root, "train"), ["train/n00/odd.JPEG"])
    assert isinstance(ImageIndex(root, index_file(root, "train")).rows, np.memmap)
    sent = pickle.dumps(index)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert len(received) == len(index) == 11
    assert [received.path(i) for i in range(11)] == [index.path(i) for i in range(11)]


@pytest.mark.parametrize("skipped", [[0, 1, 2], [3, 5, 6, 11], list(range(11))])
def test_the_others_close_ranks_around_skipped_images(root: Path, skipped: list[int]) -> None:
    """In order, each with what is its own, and still mapped."""
    whole = ImageIndex(root, index_file(root, "train"))
    paths = [os.fsdecode(path) for path in whole.paths(np.arange(12))]
    index = ImageIndex(root, index_file(root, "train"), [paths[i] for i in skipped])
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
    shards = write_folder_shards(root, tmp_path / "shards")
    for split in ("train", "val"):
        index, packed = (ImageIndex(r, index_file(r, split)) for r in (root, shards))
        assert not index.in_shards()
        assert packed.in_shards()
        for i in range(len(index)):
            assert index.read(i) == packed.read(i) == Path(index.path(i)).read_bytes()
            assert packed.path(i).endswith(index.path(i).removeprefix(str(root) + "/"))


def test_a_member_without_end_is_not_read(root: Path) -> None:
    index = ImageIndex(root, index_file(root, "train"))
    index.rows = index.rows.copy()
    index.rows["bytes"][1] = 10**10
    with pytest.raises(InputFailedError, match="it has more than"):
        index.read(1)


# --- What is refused before training ---------------------------------------------------------


def refusal(root: Path, **change: object) -> str:
    with pytest.raises(UsageError) as refused:
        open_indexes(replace(DATA, **change), root)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_examples": 13}, "data.train_examples=13 but made at ROOT has 12; complete it and"),
        ({"val_examples": 7}, "data.val_examples=7 but made at ROOT has 6"),
        ({"classes": 4}, "data.classes=4 but made at ROOT has 3"),
        (
            {"skip": ["train/n00/odd.JPEG"], "train_examples": 10},
            "has 11 without the skipped ones; complete it and run python -m lsgd.prepare made "
            "ROOT, or write data.train_examples=12 for another trajectory (not counting a skip "
            "list, which is subtracted automatically",
        ),
        ({"index": "/nowhere"}, "no index yet (/nowhere/train.index.npy is missing)"),
    ],
)
def test_another_dataset_than_the_recipes_is_refused(
    root: Path, change: dict[str, object], message: str
) -> None:
    assert message.replace("ROOT", str(root)) in refusal(root, **change)


PYTHON = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,"
HEADER = b"\x93NUMPY\x01\x00\x3a\x00" + PYTHON.ljust(57)
"""Of an array, as Python that does not end."""


def changed(name: str, value: object) -> Callable[[NDArray], bytes]:  # type: ignore[type-arg]
    """An index in whose fourth row this field has another value, however long."""

    def content(rows: NDArray) -> bytes:  # type: ignore[type-arg]
        wide = [(key, "S60" if kind.startswith("|S") else kind) for key, kind in rows.dtype.descr]
        rows = rows.astype(wide)
        rows[name][3] = value
        return as_file(rows)

    return content


def as_file(rows: NDArray) -> bytes:  # type: ignore[type-arg]
    np.save(file := io.BytesIO(), rows)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda rows: as_file(rows[["path", "shard", "offset", "bytes"]]), "label, width"),
        (lambda rows: as_file(np.zeros(3, [(name, "f8") for name in rows.dtype.names])), "path"),
        (lambda rows: as_file(rows[None]), "more dimensions"),
        (lambda rows: HEADER + b"\n" + bytes(8), "not an index"),
        (changed("path", b"train/n00/../../../secret.JPEG"), "not an image in a class of train"),
        (changed("path", b"train/n00/.."), "not an image in a class of train"),
        (changed("path", b"/etc/n00/passwd"), "not an image in a class of train"),
        (changed("path", b"train/a.JPEG"), "not an image in a class of train"),
        (changed("shard", b"../secret.tar"), "'../secret.tar:train/n00/"),
        (changed("shard", b"/secret.tar"), "not an image in a class of train"),
        (lambda rows: as_file(rows[:0]), "lists no image"),
    ],
)
def test_an_index_of_somebody_else_reads_nothing_elsewhere(
    root: Path,
    tmp_path: Path,
    content: Callable[[NDArray], bytes],  # type: ignore[type-arg]
    why: str,
) -> None:
    for split in ("train", "val"):
        shutil.copy(index_file(root, split), index_file(tmp_path, split))
    file = index_file(tmp_path, "train")
    file.write_bytes(content(np.load(file)))
    said = refusal(root, index=str(tmp_path))
    assert why in said
    assert str(file) in said


def test_a_name_with_a_zero_byte_is_no_file(root: Path, tmp_path: Path) -> None:
    """Neither a class, which is looked for at the start, nor an image, which is read in time."""
    for split in ("train", "val"):
        shutil.copy(index_file(root, split), index_file(tmp_path, split))
    file = index_file(tmp_path, "train")
    whole = np.load(file)
    file.write_bytes(changed("path", b"train/n00/odd\0.JPEG")(whole))
    index, _ = open_indexes(replace(DATA, index=str(tmp_path)), root)
    with pytest.raises(InputFailedError, match="cannot be read"):
        index.read(3)
    rows = whole.copy()
    rows["path"] = np.char.replace(whole["path"], b"n00/", b"n\0a/")
    file.write_bytes(as_file(rows))
    assert str(file) in refusal(root, index=str(tmp_path))


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


def half(root: Path) -> None:
    file = index_file(root, "train")
    file.write_bytes(file.read_bytes()[:-100])


def new_image(root: Path) -> None:
    (root / "train" / "n01" / "new.JPEG").touch()


def new_class(root: Path) -> None:
    (root / "train" / "n03").mkdir()
    (root / "train" / "n03" / "a.JPEG").touch()


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
        (half, "train.index.npy is not an index"),
        (new_image, "train.index.npy is older than ROOT: ROOT/train/n01/new.JPEG is new; "),
        (
            lambda root: (root / "val/n02/gray.JPEG").unlink(),
            "val.index.npy is older than ROOT: ROOT/val/n02/gray.JPEG is missing; ",
        ),
        (new_class, "train.index.npy is older than ROOT: ROOT/train/n03 is new; "),
        (
            lambda root: (root / "val/n02").rename(root / "n02"),
            "val.index.npy is older than ROOT: ROOT/val/n02 is missing; ",
        ),
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


def test_a_skipped_image_may_be_removed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the folder is indexed again and after it; its runs refused to be resumed."""
    made = copy(root, tmp_path / "copy")
    data = replace(DATA, skip=["train/n00/odd.JPEG"], train_examples=11)
    before = [index.columns() for index in open_indexes(data, made)]
    (made / "train/n00/odd.JPEG").unlink()
    open_indexes(data, made)
    assert not capsys.readouterr().err
    index_folder(made)
    after = [index.columns() for index in open_indexes(data, made)]
    assert [{name: column.tolist() for name, column in each.items()} for each in after] == [
        {name: column.tolist() for name, column in each.items()} for each in before
    ]
    assert capsys.readouterr().err == (
        f"data.skip names train/n00/odd.JPEG, which {made}/train.index.npy does not have; correct "
        "the skip list, unless these images were removed\n"
    )
    (made / "train/n01/odd.JPEG").unlink()
    assert "n01/odd.JPEG is missing" in refusal(made, skip=data.skip, train_examples=11)


def test_the_digests_do_not_depend_on_a_skipped_image(root: Path, tmp_path: Path) -> None:
    """Not even if its path is the longest, which sets the type of the index."""
    made = copy(root, tmp_path / "copy")
    longest = made / f"train/n00/{'long' * 20}.JPEG"
    shutil.copy(made / "train/n00/odd.JPEG", longest)
    index_folder(made)
    skip = [str(longest.relative_to(made))]

    def digests() -> dict[str, str]:
        index = ImageIndex(made, index_file(made, "train"), skip)
        return {name: _digest(column) for name, column in index.columns().items()}

    before = digests()
    rows = np.load(index_file(made, "train"))  # as checkpoints of earlier versions have it
    assert before["path"] == _digest(rows["path"][rows["path"] != skip[0].encode()])
    longest.unlink()
    index_folder(made)
    assert digests() == before


def test_only_a_command_that_has_the_option_is_advised_with_an_index(tmp_path: Path) -> None:
    index = tmp_path / "index"
    command = f"python -m lsgd.prepare folder {tmp_path} --index {index}"
    assert renewal_command("tiny-imagenet", tmp_path, index) == command
    assert renewal_command("tiny-imagenet", tmp_path, tmp_path).endswith(f"imagenet {tmp_path}")
    assert renewal_command("imagenet", tmp_path, index) == command.replace("folder", "imagenet")


def test_what_does_not_matter_is_no_change(root: Path, tmp_path: Path) -> None:
    """A copied folder is newer than its index; notes beside the images are no images."""
    made = copy(root, tmp_path / "copy")
    (made / "train" / "n00" / "notes.txt").touch()
    (made / "train" / "empty").mkdir()
    os.utime(made / "train" / "n00")
    os.utime(made / "val")
    assert [len(index) for index in open_indexes(DATA, made)] == [12, 6]


def test_one_process_looks_for_all_of_its_machine(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 would ask a file system for a million names each."""
    made = copy(root, tmp_path / "copy")
    new_image(made)
    job = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    open_indexes(DATA, made)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "new.JPEG is new" in refusal(made)


def backdated(root: Path) -> None:
    """Set all dates back, as tar, rsync and `cp -a` do of a copy."""
    for path in (root, *root.rglob("*")):
        if path.suffix != ".npy":
            os.utime(path, (0, 0))


def test_a_folder_whose_dates_were_set_back_is_looked_at(root: Path, tmp_path: Path) -> None:
    made = copy(root, tmp_path / "copy")
    new_image(made)
    backdated(made)
    assert f"{made}/train/n01/new.JPEG is new" in refusal(made)
    (made / "train" / "n01" / "new.JPEG").unlink()
    backdated(made)
    open_indexes(DATA, made)


def test_a_shard_whose_dates_were_set_back_is_looked_at(root: Path, tmp_path: Path) -> None:
    shards = write_folder_shards(root, tmp_path / "shards")
    other = copy(root, tmp_path / "other")
    for path in (other / "train").rglob("*.JPEG"):
        path.write_bytes(path.read_bytes() + bytes(600))
    index_folder(other)
    open_indexes(DATA, shards)
    write_folder_shards(other, tmp_path / "others")
    (tmp_path / "others" / "train-000000.tar").replace(shards / "train-000000.tar")
    backdated(shards)
    assert f"{shards}/train-000000.tar holds other images" in refusal(shards)


def test_shards_that_are_not_there_are_refused(root: Path, tmp_path: Path) -> None:
    shards = write_folder_shards(root, tmp_path / "shards")
    with (shards / "val-000000.tar").open("rb+") as file:
        file.truncate(1000)
    assert f"{shards}/val-000000.tar is missing or shorter" in refusal(shards)
    (shards / "train-000000.tar").unlink()
    assert f"{shards}/train-000000.tar is missing or shorter" in refusal(shards)
    assert f"lsgd.prepare imagenet FOLDER_OF_THE_IMAGES --shards {shards}" in refusal(shards)


def test_a_folder_that_is_not_there_is_refused_with_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSGD_DATA", "nowhere")
    recipe = compose_recipe("+recipe=bs8k")
    with pytest.raises(UsageError, match="no imagenet at nowhere/imagenet") as refused:
        open_inputs(recipe, torch.device("cpu"))
    for help_ in ("data.root=", "inputs=synthetic", "dry_run=true", "recipe=digits"):
        assert help_ in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=digits", "inputs=torchvision"], "digits is not one; write inputs=memory"),
        (["+recipe=bs256", "inputs=memory"], "and not imagenet; write inputs=auto"),
        (["+recipe=bs256", "data.augmentation=shift_flip"], "shifts, which is for small images"),
        (["+recipe=digits", "data.skip=[train/a/b]"], "data.skip is for image folders"),
        (["+recipe=digits", "data.index=there"], "data.index=there is for image folders"),
        (["+recipe=digits", "inputs.decoders=2"], "decoders=2 is for image folders, .*; leave it"),
        (["+recipe=digits", "inputs.decode_on=cpu"], "decode_on=cpu is for image folders"),
        (["+recipe=digits", "inputs.decode_on=gpu"], "decode_on=gpu is for image folders"),
        (["+recipe=digits", "inputs.hardware_share=0.3"], "hardware_share=0.3 is for image"),
        (
            ["+recipe=bs256", "inputs=torchvision", "inputs.decode_on=gpu"],
            "decode_on=gpu is for DALI, and this run uses inputs=torchvision; .* write inputs=dali",
        ),
        (
            ["+recipe=bs256", "inputs=torchvision", "inputs.hardware_share=0.3"],
            "hardware_share=0.3 is for DALI",
        ),
        (["+recipe=digits", "data.augmentation=crop_flip"], "write shift_flip or none for digits"),
        (["+recipe=digits", "data.augmentation=fb_resnet_torch"], "torch is for image folders"),
    ],
)
def test_a_loader_that_does_not_suit_the_dataset_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_inputs(compose_recipe(*words), torch.device("cpu"))


@pytest.mark.parametrize(
    "words",
    [
        ["hardware=v100"],  # whose hardware_share is 0
        ["hardware=h200"],
        ["inputs.decoders=0", "inputs.decode_on=auto", "inputs.hardware_share=0.65"],
        ["inputs=synthetic", "inputs.decoders=2", "inputs.hardware_share=0.3"],
    ],
)
def test_settings_that_mean_nothing_else_are_accepted(words: list[str]) -> None:
    usual = open_inputs(compose_recipe("+recipe=digits"), torch.device("cpu"))
    kind = SyntheticInputs if "inputs=synthetic" in words else type(usual)
    assert type(open_inputs(compose_recipe("+recipe=digits", *words), torch.device("cpu"))) is kind


def test_a_share_of_the_decoder_is_a_hint_where_the_loader_is_chosen_by_the_machine() -> None:
    recipe = compose_recipe("+recipe=bs256", "inputs.hardware_share=0.3")
    _check_kind(recipe, "torchvision", torch.device("cpu"))
    gpu = replace(recipe, inputs=replace(recipe.inputs, decode_on="gpu"))
    with pytest.raises(UsageError, match="decode_on=gpu is for DALI"):
        _check_kind(gpu, "torchvision", torch.device("cpu"))


def test_another_loader_of_a_benchmark_has_no_settings_of_dali() -> None:
    settings = InputsSettings(loader="dali", decoders=3, decode_on="gpu", hardware_share=0.3)
    assert settings.with_loader("torchvision") == InputsSettings("torchvision", 3)
    assert settings.with_loader("dali") == settings
