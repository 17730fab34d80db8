"""The index of an image folder says what is there, and is made anew only where it changed."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lsgd.inputs.index import ImageIndex
from lsgd.prepare import indexing
from lsgd.prepare.indexing import index_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes in two splits: a JPEG per size, whose order by name is not by size."""
    for split in ("train", "val"):
        for name in ("n02", "n01"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in (10, 9):
                Image.new("RGB", (30 + i, 20 + i)).save(folder / f"{name}_{i}.JPEG")
    return tmp_path


def rows(folder: Path, split: str = "train") -> list[tuple[object, ...]]:
    """The index as plain tuples."""
    return np.load(folder / f"{split}.index.npy").tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_are_what_is_on_disk(root: Path, processes: int) -> None:
    (root / "train/n01/notes.txt").write_text("no image")
    assert index_folder(root, processes=processes) == []
    found = rows(root)
    # As text 10 comes before 9.
    names = ["n01/n01_10", "n01/n01_9", "n02/n02_10", "n02/n02_9"]
    assert [row[0] for row in found] == [f"train/{name}.JPEG".encode() for name in names]
    assert [row[4] for row in found] == [0, 0, 1, 1]
    assert [row[5:] for row in found] == [(40, 30), (39, 29)] * 2
    index = ImageIndex(root, root / "train.index.npy")
    for i in range(4):
        assert index.read(i) == (root / f"train/{names[i]}.JPEG").read_bytes()
    assert sorted(path.name for path in root.iterdir()) == [
        "train",
        "train.index.npy",
        "val",
        "val.index.npy",
    ]


def test_size_is_as_stored_whatever_the_rotation(root: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (50, 20)).save(root / "train/n01/a.JPEG", exif=exif)
    index_folder(root)
    assert rows(root)[0][5:] == (50, 20)


def test_unreadable_headers_are_rows_of_size_0(root: Path) -> None:
    (root / "val/n01/a.JPEG").write_text("<html>not found</html>")
    (root / "val/n02/a.JPEG").touch()
    assert index_folder(root) == ["val/n01/a.JPEG", "val/n02/a.JPEG"]
    found = rows(root, "val")
    assert len(found) == 6
    assert found[0][3:] == (22, 0, 0, 0)


def test_a_limit_on_pixels_holds_for_images_that_are_known(root: Path) -> None:
    """The largest have 40 x 30 pixels, and the others 39 x 29."""
    large = [
        f"{split}/{name}/{name}_10.JPEG" for split in ("train", "val") for name in ("n01", "n02")
    ]
    time.sleep(0.05)  # files of the very moment of the index count as changed
    for most, unusable in ((1200, []), (1199, large), (1200, []), (1000, None)):
        found = index_folder(root, max_pixels=most)
        assert len(found) == 8 if unusable is None else found == unusable
        assert rows(root)[0][5:] == ((0, 0) if most < 1200 else (40, 30))


def test_only_what_changed_is_opened_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def size(path: Path, max_pixels: int) -> tuple[int, int]:
        opened.append(path)
        return original(path, max_pixels)

    original = indexing.usable_size
    monkeypatch.setattr(indexing, "usable_size", size)
    time.sleep(0.05)  # files of the very moment of the index count as changed
    index_folder(root)
    assert len(opened) == 8
    opened.clear()
    index_folder(root)
    assert opened == []
    changed = root / "train/n02/n02_9.JPEG"
    before = changed.stat()
    # Same length, same mtime, another image: what `rsync -t` or `mv` can leave.
    content = bytearray(changed.read_bytes())
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = bytes((0, 77, 0, 88))
    changed.write_bytes(content)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "val/n01/n01_9.JPEG").unlink()
    shutil.copy(root / "val/n01/n01_10.JPEG", root / "val/n01/n01_11.JPEG")
    index_folder(root)
    assert opened == [changed, root / "val/n01/n01_11.JPEG"]
    assert rows(root)[3][5:] == (88, 77)
    assert [row[0] for row in rows(root, "val")][:2] == [
        b"val/n01/n01_10.JPEG",
        b"val/n01/n01_11.JPEG",
    ]


def test_index_beside_a_folder_that_nothing_is_written_to(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "some/where"
    index_folder(root, elsewhere)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["train.index.npy", "val.index.npy"]
    assert sorted(path.name for path in root.iterdir()) == ["some", "train", "val"]
