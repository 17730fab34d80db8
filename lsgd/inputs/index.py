"""The index of an image folder, which saves every run from searching for its files.

There is one file per split, a numpy array of rows sorted by (class, path); an example's id is its
row. The file is memory-mapped, so opening it takes no time and all processes of a machine share it.
An image is a file of its own or part of a tar shard; ids and crops are the same in both cases.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from tarfile import BLOCKSIZE, TarError, TarInfo
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd import messages
from lsgd.errors import InputFailedError, UsageError
from lsgd.files import atomic_write
from lsgd.job.launcher import detect_launch
from lsgd.paths import is_leftover
from lsgd.recipe import Data
from lsgd.recipe.image_folder import SPLITS as SPLITS
from lsgd.recipe.image_folder import index_file as index_file
from lsgd.recipe.image_folder import prepare_command as prepare_command
from lsgd.recipe.image_folder import rows_of
from lsgd.untrusted_files import open_regular, parse_json, read_bounded

IndexRow = tuple[bytes, bytes, int, int, int, int, int]
"""The path, shard, offset, length, label, width and height of one image in the index.

The path (`train/n01440764/….JPEG`) and the tar shard (empty if there is none) are relative to the
root; offset and length are bytes in the shard or file. Width and height are as stored, or both 0 if
the image is broken or loaders decode it differently.
"""

FIELDS = ("path", "shard", "offset", "bytes", "label", "width", "height")

FURTHER_SET = "evaluation."
"""The prefix of columns of evaluation sets other than val."""
MARKER = ".stage.json"
"""The file in the folder of a dataset's copy by data.stage that says of what it is a copy."""

MAX_FILE_BYTES = 2**28
"""The largest size of an image's file, in bytes."""
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def class_folders(split: Path) -> list[str]:
    """Return the sorted names of a split's class folders, without hidden and system folders."""
    return sorted(name for name in _folders(split) if not is_leftover(name))


def image_files(folder: Path) -> list[str]:
    """Return the sorted names of a class folder's image files, without hidden and system files."""
    return sorted(name for name in _images(folder) if not is_leftover(name))


def leftovers(split: Path) -> list[str]:
    """Return the class folders and images of a split that are ignored as hidden or system files."""
    below = [
        f"{folder}/{name}"
        for folder in class_folders(split)
        for name in _images(split / folder)
        if is_leftover(name)
    ]
    return sorted([*filter(is_leftover, _folders(split)), *below])


def _folders(split: Path) -> list[str]:
    return [entry.name for entry in os.scandir(split) if entry.is_dir()]


def _images(folder: Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder) if not entry.is_dir())
    return [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]


def index_columns(indexes: "Mapping[str, ImageIndex]") -> dict[str, NDArray[Any]]:
    """Return the metadata columns of all splits' image indexes, by names such as `train path`.

    Those of further evaluation sets have the prefix FURTHER_SET.
    """
    return {
        f"{split if split in SPLITS else FURTHER_SET + split} {name}": column
        for split, index in indexes.items()
        for name, column in index.columns().items()
    }


def write_index(folder: Path, split: str, rows: Iterable[IndexRow]) -> Path:
    """Write the index file of a split's images atomically, with rows sorted by label and path."""
    listed = sorted(rows, key=lambda row: (row[4], row[0]))
    longest_path = max((len(row[0]) for row in listed), default=1)
    longest_shard = max((len(row[1]) for row in listed), default=1) or 1
    kinds = (f"S{longest_path}", f"S{longest_shard}", "<i8", "<i8", "<i4", "<i4", "<i4")
    table = np.array(listed, dtype=list(zip(FIELDS, kinds, strict=True)))
    target = index_file(folder, split)
    # numpy would write to a file through C's buffers, and ignores the error of the last of them.
    content = BytesIO()
    np.save(content, table)
    with atomic_write(target) as file:
        file.write(content.getbuffer())
    return target


class ImageIndex:
    """An index of one split's image files, without skipped images; example ids are 0 to len-1.

    Larger ids, of repeated images, mean the same images again from 0.

    It is small to pickle, since other processes map the same file.
    """

    def __init__(self, root: Path, file: Path, skip: Sequence[str] = ()) -> None:
        self.root, self.file, self.skip = root, file, tuple(skip)
        self.rows = np.load(file, mmap_mode="r")
        _check_fields(self.rows)
        gone = rows_of(self.rows["path"], skip)
        self.skipped = len(gone)
        # The rows stay mapped, so an id is shifted by the number of skipped rows before it.
        self._gaps = gone - np.arange(len(gone))

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageIndex, (self.root, self.file, self.skip)

    def __len__(self) -> int:
        return len(self.rows) - self.skipped

    def _of(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        # A balanced sampler counts an image that it repeats in an epoch as another example.
        ids = ids % max(1, len(self))
        rows: NDArray[Any] = self.rows[ids + np.searchsorted(self._gaps, ids, side="right")]
        return rows

    def _row(self, example: int) -> Any:
        return self._of(np.array([example]))[0]

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the class numbers of the images with these ids, shape (ids,)."""
        labels: NDArray[np.int64] = self._of(ids)["label"].astype(np.int64)
        return labels

    def sizes(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored (width, height) of the images with these ids in pixels, shape (ids, 2).

        Raises InputFailedError if the size of one of them could not be read.
        """
        rows = self._of(ids)
        if not rows["width"].all():
            first = ids[np.flatnonzero(rows["width"] == 0)[0]]
            raise self.read_error(
                first,
                "by the index, it is not a complete image that every loader decodes the same way",
            )
        return np.stack((rows["width"], rows["height"]), axis=-1).astype(np.int64)

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indexed file sizes of the images with these ids in bytes, shape (ids,)."""
        lengths: NDArray[np.int64] = self._of(ids)["bytes"]
        return lengths

    def paths(self, ids: NDArray[np.int64]) -> list[bytes]:
        """Return the paths of the images with these ids, relative to the dataset's root folder."""
        paths: list[bytes] = self._of(ids)["path"].tolist()
        return paths

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the path, label, file size, width and height of all images as columns by name.

        The columns are the same for images in files and in tar shards, and whether skipped images
        are in the index or were removed.
        """
        names = ("path", "label", "bytes", "width", "height")
        rows = self._of(np.arange(len(self))) if self.skipped else self.rows
        columns = {name: rows[name] for name in names}
        # A digest includes the type, which has the length of the index's longest path.
        longest = max((len(os.fsencode(path)) for path in self.skip), default=0)
        if longest > columns["path"].dtype.itemsize:
            columns["path"] = columns["path"].astype(f"S{longest}")
        return columns

    def classes(self) -> list[str]:
        """Return the names of the classes, which are folder names, in the order of their labels."""
        return list(self.class_names().values())

    def class_names(self) -> dict[int, str]:
        """Return the names of the classes (their folders) by label, in the order of the labels."""
        labels, first = np.unique(self.rows["label"], return_index=True)
        names = [os.fsdecode(path).split("/")[1] for path in self.rows["path"][first]]
        return dict(zip(labels.tolist(), names, strict=True))

    def in_shards(self) -> bool:
        """Return whether the images are stored in tar shards, not in files of their own."""
        return bool(len(self.rows)) and bool(self.rows["shard"][0])

    def path(self, example: int) -> str:
        """Return the full path of an image for messages, or SHARD:NAME for one in a tar shard."""
        row = self._row(example)
        path, shard = os.fsdecode(row["path"]), os.fsdecode(row["shard"])
        return f"{self.root / shard}:{path}" if shard else str(self.root / path)

    def read(self, example: int) -> bytes:
        """Read the encoded bytes of an image from its file or from its tar shard.

        Raises InputFailedError if they cannot be read, or their number differs from the index.
        """
        row = self._row(example)
        file = self.root / os.fsdecode(row["shard"] or row["path"])
        if row["bytes"] > MAX_FILE_BYTES:
            raise self.read_error(example, f"it has more than {MAX_FILE_BYTES} bytes")
        try:
            with open_regular(file, buffering=0) as opened:
                if row["shard"]:
                    content = os.pread(opened.fileno(), row["bytes"], row["offset"])
                else:
                    content = opened.read(row["bytes"] + 1)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise self.read_error(example, getattr(error, "strerror", None) or str(error)) from None
        if len(content) != row["bytes"]:
            raise self.read_error(
                example, f"it has {len(content)} bytes, and had {row['bytes']} when it was indexed"
            )
        return content

    def read_error(self, example: int, why: str) -> InputFailedError:
        """Return an InputFailedError that names an image and why it cannot be read."""
        return InputFailedError(f"{self.path(example)} cannot be read ({why})")


def _check_fields(rows: NDArray[Any]) -> None:
    """Raise ValueError if an index file's array has not the fields and types of an image index."""
    found = {name: rows.dtype[name].kind for name in rows.dtype.names or ()}
    odd = [
        name for name in FIELDS if found.get(name) != ("S" if name in ("path", "shard") else "i")
    ]
    if rows.ndim != 1 or odd:
        raise ValueError(f"its fields differ: {', '.join(odd) or 'more dimensions'}")


def check_paths(rows: NDArray[Any], split: str) -> None:
    """Raise ValueError if an image index has a path outside its root or outside a class folder.

    Reading such a path could read any file of the machine.
    """
    path, shard = rows["path"], rows["shard"]
    odd = ~np.char.startswith(path, f"{split}/".encode()) | (np.char.count(path, b"/") < 2)
    odd |= np.char.startswith(shard, b"/")
    for names in (path, shard):
        odd |= np.char.startswith(names, b"../") | np.char.endswith(names, b"/..")
        odd |= np.char.find(names, b"/../") >= 0
    if odd.any():
        row = rows[np.argmax(odd)]
        where = os.fsdecode(row["shard"]) + ":" * bool(row["shard"]) + os.fsdecode(row["path"])
        raise ValueError(f"it has {where!r}, which is not an image in a class of {split}")


def open_indexes(data: Data, root: Path) -> tuple[ImageIndex, ImageIndex]:
    """Open the training and validation index of an image folder and check both against the recipe.

    The validation images may lack some of the classes. Raises UsageError if an index is missing, or
    does not match the folder or the recipe.
    """
    folder = Path(data.index) if data.index else root
    train, val = (_open(data, root, folder, split) for split in SPLITS)
    for path in data.skip:
        if not index_file(folder, path.split("/")[0]).is_file():
            raise UsageError(
                f"data.skip names {path}, and {folder} has no index of such images; correct the "
                "skip list"
            )
    _check_classes(data, root, train, val, "val")
    for name, number, expected in (
        ("classes", len(train.classes()), data.classes),
        ("train_examples", len(train), data.train_examples),
        ("val_examples", len(val), data.val_examples),
    ):
        if number != expected:
            note = " without the skipped ones" if data.skip else ""
            count = number + (train.skipped if name == "train_examples" else val.skipped)
            right = count if data.skip and name != "classes" else number
            raise UsageError(
                f"data.{name}={expected} but {data.name} at {root} has {number}{note}; complete "
                f"it and {_again(data, root)}, or write data.{name}={right} for another trajectory"
                + (
                    " (not counting a skip list, which is subtracted automatically)"
                    if data.skip
                    else ""
                )
            )
    return train, val


def open_evaluation_index(data: Data, root: Path, name: str) -> ImageIndex:
    """Open the index of a further evaluation set of an image folder, beside train and val.

    Raises UsageError if it is missing, or has other classes than the training images.
    """
    folder = Path(data.index) if data.index else root
    file = index_file(folder, name)
    train = _open(data, root, folder, "train")
    if not file.is_file():
        missing = f"evaluation.sets has {name}, and {file} is missing; "
        if train.in_shards():
            raise UsageError(
                f"{missing}of tar shards only train and val are indexed, so write "
                "evaluation.sets=[val], or data.root=FOLDER of the image files"
            )
        raise UsageError(
            f"{missing}put its images into {root / name}/CLASS and {_again(data, root, name)}"
        )
    index = _open(data, root, folder, name)
    _check_classes(data, root, train, index, name)
    return index


def read_marker(folder: Path) -> dict[str, Any]:
    """Read the marker of a copy of a dataset; return an empty dict if it has none, or a torn one.

    Its entries are the `source` folder, that of the `index`, whether the copy is `complete`, and
    the `boot` of the machine in which it was made.
    """
    try:
        found = parse_json(read_bounded(folder / MARKER))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def original_folders(root: Path, index: Path) -> tuple[Path, Path]:
    """Return the folders of a dataset and of its index, if `root` is a copy those of the original.

    Advice names them, since a copy is removed when its dataset changes.
    """
    marker = read_marker(root)
    source = marker.get("source")
    if not isinstance(source, str):
        return root, index
    return Path(source), Path(str(marker.get("index", source)))


def renewal_command(dataset: str, root: Path, folder: Path, split: str = "train") -> str:
    """Return the shell command that writes the indexes in `folder` again, that of `split` included.

    It includes all further evaluation sets that have an index, since their labels are numbered by
    the training images, and allows classes without validation images where the index has some. Of
    a copy by data.stage it is the command of the original.
    """
    root, folder = original_folders(root, folder)
    indexed = {file.name.removesuffix(".index.npy") for file in folder.glob("*.index.npy")}
    sets = sorted({split, *(name for name in indexed if (root / name).is_dir())} - {*SPLITS})
    if not sets and dataset != "folder":
        return prepare_command(dataset, root, folder)
    options = ["--allow-empty-classes"] * _lacks_classes(folder)
    options += ["--sets", ",".join(sets)] * bool(sets)
    # Only this command indexes further sets, of ImageNet too.
    return prepare_command("folder", root, folder, options)


def _lacks_classes(folder: Path) -> bool:
    """Return whether some training classes have no image in the index of val, if both are read."""
    try:
        train, val = (np.unique(np.load(index_file(folder, each))["label"]) for each in SPLITS)
    except Exception:  # any type: the file may contain anything
        return False
    return len(val) < len(train)


def _check_classes(
    data: Data, root: Path, train: ImageIndex, other: ImageIndex, split: str
) -> None:
    """Raise UsageError unless the classes of an evaluation set are training classes, by number."""
    names, others = train.class_names(), other.class_names()
    if not {*others.values()} <= {*names.values()}:
        odd = sorted({*names.values()} ^ {*others.values()})
        raise UsageError(
            f"train and {split} of {root} differ in their classes ({', '.join(odd[:3])} …); give "
            f"both the same folders and {_again(data, root, split)}"
        )
    if not others.items() <= names.items():
        label = min(label for label, _ in names.items() ^ others.items())
        raise UsageError(
            f"{train.file} and {other.file} number their classes differently (label {label} is "
            f"{names.get(label)} to train and {others.get(label)} to "
            f"{'validate' if split == 'val' else split}); "
            f"{_again(data, root, split)}"
        )


def _again(data: Data, root: Path, split: str = "train") -> str:
    return f"run {renewal_command(data.name, root, Path(data.index or root), split)}"


def _open(data: Data, root: Path, folder: Path, split: str) -> ImageIndex:
    file = index_file(folder, split)
    if not root.is_dir():
        raise UsageError(
            f"no {data.name} at {root}: the folder does not exist; write data.root=FOLDER, or "
            "train without it: inputs=synthetic (made-up images), dry_run=true (the whole run "
            "in miniature), recipe=digits (a real run on a laptop)"
        )
    if not file.is_file():
        raise UsageError(
            f"{data.name} at {root} has no index yet ({file} is missing); "
            f"{_again(data, root, split)}"
        )
    wanted = [path for path in data.skip if path.startswith(f"{split}/")]
    first = detect_launch().local_rank == 0  # one process checks for its machine
    try:
        index = ImageIndex(root, file, wanted)
        if first:
            check_paths(index.rows, split)
    except Exception as error:  # any type: the file may contain anything
        raise UsageError(f"{file} is not an index ({error}); {_again(data, root, split)}") from None
    # A skipped image may have been removed since; a run's digests prove that the others are equal.
    if first and index.skipped < len(wanted):
        known = {os.fsdecode(path) for path in index.rows["path"]}
        _warn_of_unknown(tuple(sorted({*wanted} - known)), file)
    if len(index) == 0:
        again = _again(data, root, split)
        raise UsageError(f"{file} lists no images; complete {root} and {again}")
    # This machine may have its own copy of the images, so it is compared with the index: a thousand
    # folders, and the files of newer folders.
    try:
        stale = _changed_since(index, file.stat().st_mtime) if first else None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        again = _again(data, root, split)
        raise UsageError(f"{root} does not match {file} ({error}); {again}") from None
    if stale is not None:
        raise UsageError(f"{file} is older than {root}: {stale}; {_again(data, root, split)}")
    return index


@cache
def _warn_of_unknown(paths: tuple[str, ...], file: Path) -> None:
    """Print that data.skip names images that an index does not have, once in a process."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    messages.show(
        f"data.skip names {paths[0]}{more}, which {file} does not have; correct the skip list, "
        "unless these images were removed",
        on_stderr=True,
    )


def _changed_since(index: ImageIndex, indexed_at: float) -> str | None:
    """Return the first difference between an image index and the files on disk as text, or None.

    Only shards and folders that changed after `indexed_at` are searched.
    """
    rows = index.rows
    if index.in_shards():
        shards, which = np.unique(rows["shard"], return_inverse=True)
        order = np.lexsort((rows["offset"], which))
        for shard, own in zip(shards, np.split(order, _starts(which[order])[1:]), strict=True):
            path, first, last = index.root / os.fsdecode(shard), rows[own[0]], rows[own[-1]]
            if not path.is_file() or path.stat().st_size < last["offset"] + last["bytes"]:
                return f"{path} is missing or shorter"
            if _changed_at(path) > indexed_at and not (_holds(path, first) and _holds(path, last)):
                return f"{path} holds other images"
        return None
    starts = _starts(rows["label"])
    folders = [(index.root / os.fsdecode(path)).parent for path in rows["path"][starts]]
    split, skipped = folders[0].parent, {index.root / path for path in index.skip}
    # An index that was made before leftovers were excluded stays valid.
    old = {each.name for each in folders if is_leftover(each.name) and each.is_dir()}
    for name in sorted({folder.name for folder in folders} ^ {*class_folders(split), *old}):
        if split / name in folders:
            return f"{split / name} is missing"
        if image_files(split / name):
            return f"{split / name} is new"
    for folder, paths in zip(folders, np.split(rows["path"], starts[1:]), strict=True):
        if _changed_at(folder) > indexed_at:
            listed = {Path(os.fsdecode(path)).name for path in paths}
            # A path that is no longer a regular file, such as a pipe, would block a read.
            there = (folder / name for name in sorted(listed) if (folder / name).exists())
            if odd_file := next((path for path in there if not path.is_file()), None):
                return f"{odd_file} is not a regular file"
            old = {name for name in listed if is_leftover(name) and (folder / name).exists()}
            for name in sorted(listed ^ {*image_files(folder), *old}):
                if folder / name not in skipped:
                    return f"{folder / name} is {'missing' if name in listed else 'new'}"
    return None


def _starts(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the first position of each run of equal values in a sorted array."""
    return np.flatnonzero(np.diff(values, prepend=-1))


def _changed_at(path: Path) -> float:
    """Return when a file or folder was last changed, in seconds since 1970.

    The ctime counts too, since tar, rsync and `cp -a` restore the original's mtime on a copy.
    """
    status = path.stat()
    return max(status.st_mtime, status.st_ctime)


def _holds(shard: Path, row: Any) -> bool:
    """Return whether a tar shard has a file of the indexed length and class at its offset."""
    with shard.open("rb", buffering=0) as opened:
        header = os.pread(opened.fileno(), BLOCKSIZE, row["offset"] - BLOCKSIZE)
    try:
        member = TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except TarError:
        return False
    path = os.fsdecode(row["path"])
    folder = path.split("/")[1]
    # A long or non-ASCII name is in another header before this one.
    in_header = folder.isascii() and len(folder) < 50
    # The names in other tools' shards need not begin with the class.
    name = member.name.removeprefix("./")
    same = name.startswith(f"{folder}/") or f"/{name}" in path or not path.isascii()
    return member.size == row["bytes"] and (not in_header or same)
