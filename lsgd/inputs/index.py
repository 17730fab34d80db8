"""The index of a set of image files, so that no run has to search for them.

One file per split, a numpy array of rows sorted by (class, path): an example's id is its row. It is
mapped into memory, so opening it takes no time and all processes of a machine share it. An image
lies in a file of its own or somewhere in a tar shard; ids and crops are the same either way.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.recfunctions import append_fields
from numpy.typing import NDArray

from lsgd.errors import InputFailed, Refused
from lsgd.files import whole
from lsgd.job.launcher import detect
from lsgd.recipe import Data
from lsgd.recipe.folder import SPLITS as SPLITS
from lsgd.recipe.folder import index_file as index_file
from lsgd.recipe.folder import prepare_command as prepare_command

IndexRow = tuple[bytes, bytes, int, int, int, int, int]
"""A row: path of the image relative to the root (`train/n01440764/….JPEG`); the tar shard it is in,
relative too, or nothing; offset there and length in bytes; label; width and height as stored, both
0 if it is no whole image that every loader reads alike."""

FIELDS = ("path", "shard", "offset", "bytes", "label", "width", "height")

LATER: dict[str, np.generic] = {}
"""Fields that were added after the first indexes, each with the value that those imply."""

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def class_folders(split: Path) -> list[str]:
    """Names of the classes of a split, in the order of their labels."""
    return sorted(entry.name for entry in os.scandir(split) if entry.is_dir())


def image_files(folder: Path) -> list[str]:
    """Names of the images in the folder of a class."""
    names = (entry.name for entry in os.scandir(folder) if not entry.is_dir())
    return sorted(name for name in names if name.lower().endswith(IMAGE_SUFFIXES))


def write_index(folder: Path, split: str, rows: Iterable[IndexRow]) -> Path:
    """Write the index of a split in one move, its rows sorted by label and path."""
    listed = sorted(rows, key=lambda row: (row[4], row[0]))
    longest_path = max((len(row[0]) for row in listed), default=1)
    longest_shard = max((len(row[1]) for row in listed), default=1) or 1
    kinds = (f"S{longest_path}", f"S{longest_shard}", "<i8", "<i8", "<i4", "<i4", "<i4")
    table = np.array(listed, dtype=list(zip(FIELDS, kinds, strict=True)))
    target = index_file(folder, split)
    with whole(target) as file:
        np.save(file, table)
    return target


class Index:
    """The images of one split, without those that are skipped; ids are 0 … len-1.

    It is small to pickle: another process maps the same file.
    """

    def __init__(self, root: Path, file: Path, skip: Sequence[str] = ()) -> None:
        self.root, self.file, self.skip = root, file, tuple(skip)
        self.rows = _completed(np.load(file, mmap_mode="r"))
        skipped = [os.fsencode(path) for path in skip]
        gone = np.flatnonzero(np.isin(self.rows["path"], np.array(skipped, "S")))
        self.skipped = len(gone)
        # The rows stay mapped: an id is moved on by the skipped rows before its own.
        self._gaps = gone - np.arange(len(gone))

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.root, self.file, self.skip)

    def __len__(self) -> int:
        return len(self.rows) - self.skipped

    def _of(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        rows: NDArray[Any] = self.rows[ids + np.searchsorted(self._gaps, ids, side="right")]
        return rows

    def _row(self, example: int) -> Any:
        return self._of(np.array([example]))[0]

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Class numbers of these images, shape (ids,)."""
        labels: NDArray[np.int64] = self._of(ids)["label"].astype(np.int64)
        return labels

    def sizes(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(width, height) in pixels of these images as stored, shape (ids, 2).

        Raises InputFailed if one of them had none that could be read.
        """
        rows = self._of(ids)
        if not rows["width"].all():
            first = ids[np.flatnonzero(rows["width"] == 0)[0]]
            raise self.failed(
                first, "it is no whole image that every loader reads alike, says the index"
            )
        return np.stack((rows["width"], rows["height"]), axis=-1).astype(np.int64)

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of these images' files when they were indexed, shape (ids,)."""
        lengths: NDArray[np.int64] = self._of(ids)["bytes"]
        return lengths

    def paths(self, ids: NDArray[np.int64]) -> list[bytes]:
        """Paths of these images relative to the root."""
        paths: list[bytes] = self._of(ids)["path"].tolist()
        return paths

    def classes(self) -> list[str]:
        """Names of the classes in order: the folders that the images are in."""
        return list(self.class_names().values())

    def class_names(self) -> dict[int, str]:
        """Names of the classes by label, in order."""
        labels, first = np.unique(self.rows["label"], return_index=True)
        names = [os.fsdecode(path).split("/")[1] for path in self.rows["path"][first]]
        return dict(zip(labels.tolist(), names, strict=True))

    def in_shards(self) -> bool:
        """Whether the images lie in tar shards."""
        return bool(len(self.rows)) and bool(self.rows["shard"][0])

    def path(self, example: int) -> str:
        """The full path of the image; in a shard: the shard, a colon and its name there."""
        row = self._row(example)
        path, shard = os.fsdecode(row["path"]), os.fsdecode(row["shard"])
        return f"{self.root / shard}:{path}" if shard else str(self.root / path)

    def read(self, example: int) -> bytes:
        """The bytes of the image's file.

        Raises InputFailed if they cannot be read, or are not as many as when the index was made.
        """
        row = self._row(example)
        file = self.root / os.fsdecode(row["shard"] or row["path"])
        try:
            with file.open("rb", buffering=0) as opened:
                if row["shard"]:
                    content = os.pread(opened.fileno(), row["bytes"], row["offset"])
                else:
                    content = opened.read()
        except OSError as error:
            raise self.failed(example, error.strerror or str(error)) from None
        if len(content) != row["bytes"]:
            raise self.failed(
                example, f"it has {len(content)} bytes, and had {row['bytes']} when it was indexed"
            )
        return content

    def failed(self, example: int, why: str) -> InputFailed:
        """The error to raise if an image cannot be used."""
        return InputFailed(f"{self.path(example)} cannot be read ({why})")


def _completed(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows of an index with all fields; those of an older version are copied into memory."""
    later = [name for name in LATER if name not in (rows.dtype.names or ())]
    if not later:
        return rows
    values = [np.full(len(rows), LATER[name]) for name in later]
    completed: NDArray[Any] = append_fields(rows, later, values, usemask=False)
    return completed


def open_indexes(data: Data, root: Path) -> tuple[Index, Index]:
    """The training and the validation images of an image folder, checked against the recipe.

    Raises Refused where there is no index, or it does not fit the folder or the recipe.
    """
    folder = Path(data.index) if data.index else root
    train, val = (_open(data, root, folder, split) for split in SPLITS)
    if odd := sorted(set(train.classes()) ^ set(val.classes())):
        raise Refused(
            f"train and val of {root} differ in their classes ({', '.join(odd[:3])} …); give both "
            f"the same folders and {_again(data, root)}"
        )
    names, others = train.class_names(), val.class_names()
    if names != others:
        label = min(label for label, _ in names.items() ^ others.items())
        raise Refused(
            f"{train.file} and {val.file} number their classes differently (label {label} is "
            f"{names.get(label)} to train and {others.get(label)} to validate); "
            f"{_again(data, root)}"
        )
    for name, number, expected in (
        ("classes", len(train.classes()), data.classes),
        ("train_examples", len(train), data.train_examples),
        ("val_examples", len(val), data.val_examples),
    ):
        if number != expected:
            note = " beside those left out" if data.skip else ""
            count = number + (train.skipped if name == "train_examples" else val.skipped)
            right = count if data.skip and name != "classes" else number
            raise Refused(
                f"data.{name}={expected} but {data.name} at {root} has {number}{note}; complete "
                f"it and {_again(data, root)}, or write data.{name}={right} for another trajectory"
                + (" (a skip list is taken off by itself)" if data.skip else "")
            )
    return train, val


def _again(data: Data, root: Path) -> str:
    return f"run {prepare_command(data.name, root, Path(data.index) if data.index else None)}"


def _open(data: Data, root: Path, folder: Path, split: str) -> Index:
    file = index_file(folder, split)
    if not root.is_dir():
        raise Refused(
            f"no {data.name} at {root}: there is no such folder; write data.root=FOLDER, or go on "
            "without: inputs=synthetic (made-up images), rehearse=true (the whole run in "
            "miniature), +recipe=digits (a real run on a laptop)"
        )
    if not file.exists():
        raise Refused(
            f"{data.name} at {root} has no index yet ({file} is missing); {_again(data, root)}"
        )
    wanted = [path for path in data.skip if path.startswith(f"{split}/")]
    try:
        index = Index(root, file, wanted)
    except (ValueError, OSError, IndexError) as error:
        raise Refused(f"{file} is no index ({error}); {_again(data, root)}") from None
    if index.skipped < len(wanted):
        unknown = sorted(set(wanted) - {os.fsdecode(path) for path in np.load(file)["path"]})
        raise Refused(
            f"data.skip names {unknown[0]}, which {file} does not have; correct the skip list"
        )
    if len(index) == 0:
        raise Refused(f"{file} lists no image; complete {root} and {_again(data, root)}")
    # Process 0 looks for all: at a thousand folders, and at the files in those that are newer.
    stale = _changed_since(index, file.stat().st_mtime) if detect().rank == 0 else None
    if stale is not None:
        raise Refused(f"{file} is older than {root}: {stale}; {_again(data, root)}")
    return index


def _changed_since(index: Index, indexed_at: float) -> str | None:
    """The first difference of index and files, or None; only newer folders are searched."""
    rows = np.load(index.file, mmap_mode="r")
    if index.in_shards():
        shards, which = np.unique(rows["shard"], return_inverse=True)
        ends = np.zeros(len(shards), np.int64)
        np.maximum.at(ends, which, rows["offset"] + rows["bytes"])
        for shard, end in zip(shards, ends, strict=True):
            path = index.root / os.fsdecode(shard)
            if not path.is_file() or path.stat().st_size < end:
                return f"{path} is gone or shorter"
        return None
    starts = np.flatnonzero(np.diff(rows["label"], prepend=-1))
    folders = [(index.root / os.fsdecode(path)).parent for path in rows["path"][starts]]
    split = folders[0].parent
    for name in sorted({folder.name for folder in folders} ^ set(class_folders(split))):
        if split / name in folders:
            return f"{split / name} is gone"
        if image_files(split / name):
            return f"{split / name} is new"
    for folder, paths in zip(folders, np.split(rows["path"], starts[1:]), strict=True):
        if folder.stat().st_mtime > indexed_at:
            listed = {Path(os.fsdecode(path)).name for path in paths}
            if odd := sorted(listed ^ set(image_files(folder))):
                return f"{folder / odd[0]} is {'gone' if odd[0] in listed else 'new'}"
    return None
