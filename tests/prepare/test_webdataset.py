"""Shards that another tool wrote are indexed as they are."""

import gzip
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from lsgd.config import load_recipe
from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs.decoding import explain_read_error
from lsgd.inputs.index import ImageIndex, open_indexes
from lsgd.prepare import webdataset
from lsgd.prepare.__main__ import main, prepare
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.shards import write_shards
from lsgd.recipe import Data
from lsgd.rules.sampler import MicroBatch
from lsgd.run.rows import read_rows
from lsgd.train import train

KINDS = ("jpg", "cls")


def jpeg(number: int, side: int = 12) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side + number), (10 * number, 5, 5)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def both(folder: Path, members: dict[str, bytes]) -> Path:
    """A folder whose train and val have a shard with these members each."""
    for split in ("train", "val"):
        write_tar(folder / f"{split}-0.tar", members)
    return folder


def paths(folder: Path, split: str = "train") -> dict[str, int]:
    rows = ImageIndex(folder, folder / f"{split}.index.npy").rows
    return {os.fsdecode(row["path"]): int(row["label"]) for row in rows}


def test_shards_of_lsgd_get_the_index_that_they_had(tmp_path: Path) -> None:
    """Names too long for a plain header, and with dots, among them."""
    for split, each in (("train", 5), ("val", 2)):
        for name in ("n01", "n02"):
            (tmp_path / f"root/{split}/{name}").mkdir(parents=True)
            for number in range(each):
                file = f"a.{number}.jpg" if number % 2 else f"{'long' * 40}{number}.jpg"
                (tmp_path / f"root/{split}/{name}/{name}{file}").write_bytes(jpeg(number))
    index_folder(tmp_path / "root")
    folder = tmp_path / "shards"
    write_shards(tmp_path / "root", tmp_path / "root", folder, megabytes=1, processes=1)
    expected = {each: np.load(folder / f"{each}.index.npy") for each in ("train", "val")}
    prepare(["index", str(folder), "--index", str(tmp_path / "again")])
    for split, rows in expected.items():
        again = np.load(tmp_path / f"again/{split}.index.npy")
        for column in ("shard", "offset", "bytes", "label", "width", "height"):
            assert (np.sort(again[column]) == np.sort(rows[column])).all(), column
        # Dots within a name became underscores in the shards.
        names = [path.replace(b"a.", b"a_") for path in rows["path"].tolist()]
        assert sorted(again["path"].tolist()) == sorted(names)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (  # numbers alone: the class is named by them
            {"1.jpg": jpeg(1), "1.cls": b"1", "0.jpg": jpeg(0), "0.cls": b"0\n"},
            {"train/0/0.jpg": 0, "train/1/1.jpg": 1},
        ),
        (  # the class stands before the image, and other files of the example are passed over
            {"a.json": b'{"label": 0}', "a.txt": b"a dog", "a.img.jpg": jpeg(1), "a.mask.jpg": b""},
            {"train/0/a.img.jpg": 0},
        ),
        (  # a plain kind is the image, and other pictures have names; an only one may have a name
            {"a.cls": b"01", "a.m.png": b"", "a.large.jpg": b"", "a.jpg": jpeg(1), "b.cls": b"0"}
            | {"b.depth.jpg": jpeg(2)},
            {"train/1/a.jpg": 1, "train/0/b.depth.jpg": 0},
        ),
        (  # the number in .cls is the class, whatever label a .json has beside it
            {"a.json": b'{"label": "dog"}', "a.cls": b"0", "a.jpg": jpeg(1)}
            | {"b.jpg": jpeg(2), "b.json": b'{"label": [1]}'},
            {"train/0/a.jpg": 0, "train/1/b.jpg": 1},
        ),
        (  # a text beside the number, in either order, and alone in a list
            {"x/0.jpg": jpeg(0), "x/0.json": b'{"label": "dog", "cls": 1}'}
            | {"x/1.jpg": jpeg(1), "x/1.json": b'{"label": ["cat"], "cls": [0]}'}
            | {"x/2.jpg": jpeg(2), "x/2.json": b'{"cls": "cat", "label": 0}'},
            {"train/0/x/1.jpg": 0, "train/0/x/2.jpg": 0, "train/1/x/0.jpg": 1},
        ),
        (  # a large file beside the .cls
            {"n1/0.jpg": jpeg(0), "n1/0.json": b" " * 2**21, "n1/0.cls": b"0"},
            {"train/n1/0.jpg": 0},
        ),
        (  # a label that is a text leaves the folder
            {"cat/1.jpg": jpeg(1), "cat/1.json": b'{"label": "a cat"}'},
            {"train/cat/1.jpg": 0},
        ),
        (  # folders alone
            {"./dog/1.jpg": jpeg(1), "./cat/1.jpeg": jpeg(2)},
            {"train/cat/1.jpeg": 0, "train/dog/1.jpg": 1},
        ),
        (  # numbers of which each has a folder, in another order than their names
            {"b/1.jpg": jpeg(1), "b/1.cls": b"0", "a/1.jpg": jpeg(2), "a/1.cls": b"1"},
            {"train/b/1.jpg": 0, "train/a/1.jpg": 1},
        ),
        (  # folders that are no classes
            {"x/1.jpg": jpeg(1), "x/1.cls": b"0", "x/2.jpg": jpeg(2), "x/2.cls": b"1"},
            {"train/0/x/1.jpg": 0, "train/1/x/2.jpg": 1},
        ),
    ],
)
def test_where_a_class_is_named(
    members: dict[str, bytes], expected: dict[str, int], tmp_path: Path
) -> None:
    folder = both(tmp_path / "shards", members)
    prepare(["index", str(folder)])
    assert paths(folder) == expected
    index = ImageIndex(folder, folder / "train.index.npy")
    assert {index.read(i) for i in range(len(index))} == {
        content for name, content in members.items() if name.endswith(("jpg", "jpeg")) and content
    }


def test_a_run_opens_what_was_indexed_and_notices_another_shard(tmp_path: Path) -> None:
    """Also where shards repeat their names, and lie below folders."""
    root, index = tmp_path / "shards", tmp_path / "index"
    for number in range(4):
        split = "training/train" if number < 3 else "validation"
        members = {"0.jpg": jpeg(number), "0.cls": b"0", "1.jpg": jpeg(number + 4), "1.cls": b"1"}
        write_tar(root / f"{split}/{number}.tar", members)
    prepare(["index", str(root), "--index", str(index)])
    assert sorted(path.name for path in index.iterdir() if path.name[0] != ".") == [
        "train.index.npy", "val.index.npy",
    ]  # fmt: skip
    assert not list(root.glob("*.npy"))
    data = Data(
        name="folder", root=str(root), index=str(index), classes=2, train_examples=6, val_examples=2
    )
    train, _ = open_indexes(data, root)
    assert train.paths(np.arange(2)) == [
        b"train/0/training/train/0/0.jpg", b"train/0/training/train/1/0.jpg",
    ]  # fmt: skip
    assert train.read(1) == jpeg(1)
    other = {"7.jpg": jpeg(0), "7.cls": b"0", "8.jpg": jpeg(4), "8.cls": b"1"}
    write_tar(root / "training/train/0.tar", other)
    with pytest.raises(UsageError, match=r"0\.tar holds other images"):
        open_indexes(data, root)


def test_a_link_does_not_bring_shards_of_val_into_train(tmp_path: Path) -> None:
    """Whose names are below it in both splits."""
    both(tmp_path / "all", {"1.jpg": jpeg(1), "1.cls": b"0"})
    (tmp_path / "train").symlink_to("all")
    with pytest.raises(UsageError, match="would be in train and in val; give --train and --val"):
        webdataset.find_shards(tmp_path, {"train": None, "val": None})


def test_only_shards_that_changed_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a command that a broken shard has ended."""
    members = {"1.jpg": jpeg(1), "1.cls": b"0"}
    folder = both(tmp_path / "shards", members)
    write_tar(folder / "train-1.tar", {"2.jpg": jpeg(2), "2.cls": b"0"})
    whole = (folder / "val-0.tar").read_bytes()
    (folder / "val-0.tar").write_bytes(whole[:700])
    monkeypatch.setattr(webdataset, "count_usable_cores", lambda: 1)
    command = ["index", str(folder)]
    with pytest.raises(UsageError, match=r"val-0\.tar is cut short or no tar"):
        prepare(command)
    (folder / "val-0.tar").write_bytes(whole)
    read = []
    original = webdataset._examples
    monkeypatch.setattr(
        webdataset, "_examples", lambda tar, *rest: read.append(tar.name) or original(tar, *rest)
    )
    prepare(command)
    assert len(read) == 1
    assert paths(folder) == {"train/0/1.jpg": 0, "train/0/2.jpg": 0}


def test_a_damaged_or_joined_shard_is_refused(tmp_path: Path) -> None:
    """Of which the first examples were indexed, without a word on the others."""
    members = {
        f"{i}.{kind}": jpeg(i) if kind == "jpg" else b"0" for i in range(4) for kind in KINDS
    }
    folder = both(tmp_path / "shards", members)
    shard = folder / "train-0.tar"
    whole = shard.read_bytes()
    with tarfile.open(shard) as tar:
        header = tar.getmembers()[4].offset
    damaged = bytearray(whole)
    damaged[header + 5] ^= 0xFF
    for content, why in (
        (bytes(damaged), "bad checksum"),
        (whole[: header + 100], "truncated header"),
        (whole + (folder / "val-0.tar").read_bytes(), "joined archives"),
    ):
        shard.write_bytes(content)
        with pytest.raises(UsageError, match=rf"train-0\.tar is cut short or no tar \(.*{why}"):
            prepare(["index", str(folder), "--processes", "1"])
    shard.write_bytes(whole[:header])  # as a writer leaves it that is not closed
    prepare(["index", str(folder), "--processes", "1"])
    assert len(paths(folder)) == 2


def test_shards_are_read_again_with_another_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"1.jpg": jpeg(1), "1.cls": b"0", "2.jpg": jpeg(2, side=30), "2.cls": b"0"}
    folder = both(tmp_path / "shards", members)
    monkeypatch.setattr(webdataset, "_class_names", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(["index", str(folder)])
    monkeypatch.undo()
    prepare(["index", str(folder), "--max-pixels", "200"])
    assert paths(folder) == {"train/0/1.jpg": 0}


def test_what_cannot_be_used_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = {
        "good.jpg": jpeg(1), "good.cls": b"0", "cut.jpg": jpeg(2)[:-9], "cut.cls": b"0",
        "large.jpg": jpeg(3, side=90), "large.cls": b"0", "none.cls": b"0", "empty.jpg": b"",
        "empty.cls": b"0",
    }  # fmt: skip
    folder = both(tmp_path / "shards", members)
    prepare(["index", str(folder), "--max-pixels", "8000"])
    assert paths(folder) == {"train/0/good.jpg": 0}
    warning = capsys.readouterr().out.splitlines()[0]
    assert warning.startswith("warning: 4 of train skipped (train-0.tar:cut.jpg, truncated")
    assert "train-0.tar:none.cls, an example without an image" in warning


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_is_named_and_skipped(
    kind: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As tar stores a file whose hard link it has stored; it was left out without a word."""
    folder = both(tmp_path / "shards", {"n01/1.jpg": jpeg(1), "n02/2.jpg": jpeg(2)})
    with tarfile.open(folder / "train-0.tar", "a", format=tarfile.GNU_FORMAT) as tar:
        link = tarfile.TarInfo("n02/3.jpg")
        link.type, link.linkname = kind, "n01/1.jpg"
        tar.addfile(link)
    prepare(["index", str(folder)])
    assert paths(folder) == {"train/n01/1.jpg": 0, "train/n02/2.jpg": 1}
    warning = capsys.readouterr().out.splitlines()[0]
    assert "train-0.tar:n02/3.jpg, a link to another member" in warning


def test_a_sparse_member_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another picture would be read at its place in the shard."""
    (tmp_path / "own/n01").mkdir(parents=True)
    image = Image.new("RGB", (200, 200))
    image.putpixel((0, 0), (9, 9, 9))
    image.save(tmp_path / "2.bmp")
    subprocess.run(["cp", "--sparse=always", "2.bmp", "own/n01/3.bmp"], cwd=tmp_path, check=True)
    folder = both(tmp_path / "shards", {"n01/1.jpg": jpeg(1)})
    pack = ["tar", "-S", "-cf", folder / "train-1.tar", "n01/3.bmp"]
    subprocess.run(pack, cwd=tmp_path / "own", check=True)
    with tarfile.open(folder / "train-1.tar") as tar:
        if not tar.getmembers()[0].issparse():
            pytest.skip("this file system keeps no holes")
    prepare(["index", str(folder)])
    assert paths(folder) == {"train/n01/1.jpg": 0}
    assert "train-1.tar:n01/3.bmp, sparse, as tar -S stores it" in capsys.readouterr().out


@pytest.mark.parametrize("order", [("json", "jpg", "cls"), ("cls", "jpg", "json")])
def test_the_class_is_that_of_cls_in_any_order(order: tuple[str, ...], tmp_path: Path) -> None:
    """The numbers of a .json may begin at 1."""
    files = {"jpg": jpeg(1), "cls": b"0", "json": b'{"label": 1}'}
    folder = both(tmp_path / "shards", {f"1.{kind}": files[kind] for kind in order})
    prepare(["index", str(folder)])
    assert paths(folder) == {"train/0/1.jpg": 0}


def test_a_folder_of_shards_is_read_once(tmp_path: Path) -> None:
    """A link to it, such as latest, would double the dataset."""
    both(tmp_path / "shards/v1", {"1.jpg": jpeg(1), "1.cls": b"0"})
    (tmp_path / "shards/latest").symlink_to("v1")
    (tmp_path / "shards/loop").symlink_to("loop")
    prepare(["index", str(tmp_path / "shards")])
    assert len(paths(tmp_path / "shards")) == 1


def test_a_linked_shard_is_read_once_by_the_name_that_says_its_split(tmp_path: Path) -> None:
    """Also in a folder that is hidden, or that is linked under the name of a split."""
    for name in ("b-train-0", "data/7", "data/8", ".store/val/0", "holdout/val-1", "holdout/2"):
        (tmp_path / f"{name}.tar").parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / f"{name}.tar").touch()
    for link, target in (
        ("a-train-newest.tar", "b-train-0.tar"),  # a link that comes first by its name
        ("train-7.tar", "data/7.tar"),
        ("train-8a.tar", "train-8b.tar"),  # a link to a link
        ("train-8b.tar", "data/8.tar"),
        ("val", ".store/val"),
        ("valid", "holdout"),
        ("test", "holdout"),
        ("train-gone.tar", "nowhere.tar"),
    ):
        (tmp_path / link).symlink_to(target)
    train = ["b-train-0.tar", "train-7.tar", "train-8a.tar", "train-gone.tar"]
    val = ["holdout/val-1.tar", "val/0.tar", "valid/2.tar"]
    find = webdataset.find_shards
    assert find(tmp_path, {"train": None, "val": None}) == {"train": train, "val": val}
    pattern = {"train": "*train-*.tar", "val": "val*/*.tar"}
    val = ["val/0.tar", "valid/2.tar", "valid/val-1.tar"]
    assert find(tmp_path, pattern) == {"train": train[:-1], "val": val}


def test_hidden_files_between_those_of_an_example_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a Mac's tar writes them; the numbers were discarded, and folders were the classes."""
    members: dict[str, bytes] = {}
    for number in range(2):
        for ending, content in (("jpg", jpeg(number)), ("cls", str(1 - number).encode())):
            name = f"{number}.{ending}"
            members |= {f"n0{number}/._{name}": b"a fork", f"n0{number}/{name}": content}
    members["n01/.ipynb_checkpoints/a.jpg"] = jpeg(3)
    folder = both(tmp_path / "shards", members)
    prepare(["index", str(folder)])
    assert paths(folder) == {"train/n01/1.jpg": 0, "train/n00/0.jpg": 1}
    warning = capsys.readouterr().out.splitlines()[0]
    assert warning.startswith("warning: 3 of train skipped (train-0.tar:n00/._0.jpg, a hidden or s")


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ({"1.jpg": jpeg(1)}, "has no class"),
        ({"1.jpg": jpeg(1), "1.cls": b"cat"}, r"1\.cls holds b'cat', and no class number"),
        ({"1.jpg": jpeg(1), "1.json": b'{"label": true}'}, "no class number"),
        ({"1.jpg": jpeg(1), "1.json": b"[" * 100_000}, "has no class"),
        ({"1.jpg": jpeg(1), "1.cls": b"0", "2.jpg": jpeg(1)}, "has no class number and other"),
        ({"1.jpg": jpeg(1), "1.cls": b"1"}, "no image of class 0"),
        ({"1.jpg": jpeg(1), "1.json": b'{"label": [0, 1]}'}, "several labels"),
        ({"1.jpg": jpeg(1), "1.json": b'{"label": [0, 1], "cls": 0}'}, "several labels"),
        (
            {"a/1.jpg": jpeg(1), "a/1.json": b'{"label": 0}' + b" " * 2**24},
            r"1\.json has more than 16777216 bytes and is not searched for a class",
        ),
        (
            {"1.cls": b"0", "1.left.jpg": jpeg(1), "1.right.png": jpeg(1)},
            r"two pictures in one example, 1\.left\.jpg and 1\.right\.png",
        ),
        ({"../1.jpg": jpeg(1), "../1.cls": b"0"}, "outside of it"),
        ({"/etc/1.jpg": jpeg(1), "/etc/1.cls": b"0"}, "outside of it"),
        (  # its numbers would be discarded for the folders
            {"a/1.jpg": jpeg(1), "b/2.jpg": jpeg(1), "a/1.cls": b"1", "b/2.cls": b"0"},
            "class number in a/1.cls without an image, and none for a/1.jpg: the files of an "
            "example do not follow each other",
        ),
        ({"1.cls": b"0"}, "no image in the shards of train"),
    ],
)
def test_refused(members: dict[str, bytes], refusal: str, tmp_path: Path) -> None:
    folder = both(tmp_path / "shards", members)
    with pytest.raises(UsageError, match=refusal):
        prepare(["index", str(folder)])
    assert not list(folder.glob("*.npy"))


def test_classes_of_one_split_alone_are_refused(tmp_path: Path) -> None:
    folder = both(tmp_path / "shards", {"1.jpg": jpeg(1), "1.cls": b"0"})
    write_tar(folder / "train-1.tar", {"2.jpg": jpeg(2), "2.cls": b"1"})
    with pytest.raises(UsageError, match=r"class 1 of .* is only in train and not in val"):
        prepare(["index", str(folder)])


def test_the_shards_of_a_split(tmp_path: Path) -> None:
    for name in ("a-1.tar", "b-1.tar", "train/1.tar.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def found(train: str | None = None, val: str | None = None) -> dict[str, list[str]]:
        return webdataset.find_shards(tmp_path, {"train": train, "val": val})

    assert found("a-*.tar", "b-*.tar") == {"train": ["a-1.tar"], "val": ["b-1.tar"]}
    for patterns, refusal in (
        ((), r"1\.tar\.gz is compressed"),
        (("*.tar", "b-*.tar"), r"b-1\.tar would be in train and in val"),
        (("/etc/*", None), "must be relative to"),
        (("../*", None), "must be relative to"),
        (("", None), "--train '' is not a pattern of file names"),
        ((".", None), r"--train '\.' is not a pattern of file names"),
        (("**/", None), "compressed"),  # folders are no shards
    ):
        with pytest.raises(UsageError, match=refusal):
            found(*patterns)
    if sys.version_info < (3, 13):  # from then on it is a*.tar
        with pytest.raises(UsageError, match=r"--train 'a\*\*\.tar' is not a pattern of file"):
            found("a**.tar")
    (tmp_path / "train/1.tar.gz").unlink()
    with pytest.raises(UsageError, match=r"no shards named train-….tar"):
        found()
    # Of a word within a word, as of "constrained", no split is known.
    (tmp_path / "constrained-1.tar").touch()
    with pytest.raises(UsageError, match="no shards"):
        found()


def test_linked_folders_and_capital_endings_have_shards(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_tar(tmp_path / f"elsewhere/{split}/0.TAR", {"1.jpg": jpeg(1), "1.cls": b"0"})
        (tmp_path / "root").mkdir(exist_ok=True)
        (tmp_path / "root" / split).symlink_to(tmp_path / "elsewhere" / split)
    (tmp_path / "elsewhere/train/above").symlink_to(tmp_path / "root")
    found = webdataset.find_shards(tmp_path / "root", {"train": None, "val": None})
    assert found == {"train": ["train/0.TAR"], "val": ["val/0.TAR"]}
    prepare(["index", str(tmp_path / "root")])
    packed = tmp_path / "elsewhere/train/0.TAR"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    with pytest.raises(UsageError, match=r"0\.TAR is compressed by gzip"):
        prepare(["index", str(tmp_path / "root")])


@pytest.mark.parametrize(
    ("names", "val", "left"),
    [
        ("train-0 val-0 test-0", ["val-0.tar"], "left out: test-0.tar, as val has val-0.tar;"),
        ("train-0 test-0 validation/0 valid-1", ["valid-1.tar", "validation/0.tar"], "test-0.tar"),
        ("train-0 test-0", ["test-0.tar"], ""),
        ("train-0 val/test-0", ["val/test-0.tar"], ""),
        ("test/train-0 test/val-0", ["test/val-0.tar"], ""),
    ],
)
def test_a_test_set_beside_val_is_left_out(
    names: str, val: list[str], left: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names.split():
        (tmp_path / f"{name}.tar").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.tar").touch()
    found = webdataset.find_shards(tmp_path, {"train": None, "val": None})
    assert found == {"train": [f"{names.split()[0]}.tar"], "val": val}
    output = capsys.readouterr().out
    assert left in output if left else not output


def test_an_unreadable_image_names_the_command_of_these_shards(tmp_path: Path) -> None:
    """Which leaves such an image out; lsgd has not written the shards, and writes none anew."""
    folder = both(tmp_path / "shards", {"1.jpg": jpeg(1), "1.cls": b"0"})
    prepare(["index", str(folder)])
    train = ImageIndex(folder, folder / "train.index.npy")
    each = MicroBatch(None, np.arange(1))
    error = explain_read_error(InputFailedError("1.jpg"), each, train, "folder")
    assert "copy the shard again" in str(error)
    assert f"`python -m lsgd.prepare index {folder}`" in str(error)


@pytest.mark.slow
def test_a_run_on_shards_of_another_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the overrides of the command's last line."""
    members: dict[str, bytes] = {}
    for number in range(8):
        label = json.dumps({"label": number % 2, "caption": "a dog"})
        members |= {f"{number}.jpg": jpeg(number), f"{number}.json": label.encode()}
    folder = both(tmp_path / "my shards", members)
    assert main(["index", str(folder)]) == 0
    ready = capsys.readouterr().out.splitlines()[-1]
    assert ready.startswith("ready: python -m lsgd.train recipe=bs256 data=folder ")
    _, *overrides = shlex.split(ready.partition("lsgd.train ")[2])
    small = ["model=small_resnet", "data.image_size=8", "epochs=1", "schedule.milestones=[]"]
    small += ["schedule.warmup=none", "inputs.decoders=0", "device=cpu"]
    run = tmp_path / "run"
    train(load_recipe(["+recipe=bs256", *overrides, *small, f"run_dir={run}"]))
    last = read_rows(run / "metrics.jsonl")[-1]
    assert (last["kind"], last["epoch"]) == ("epoch", 1)
