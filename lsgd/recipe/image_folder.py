"""The numbers of images of a dataset: as its index files have them, and without skipped ones.

The index has one file for each split, whose other columns lsgd.inputs.index reads.
"""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import UsageError
from lsgd.paths import is_leftover
from lsgd.recipe import Data

SPLITS = ("train", "val")
BLOCK = 1 << 16
"""The number of image paths of a dataset's index that are compared with a skip list at once."""
IMAGENET_ARCHIVE = re.compile(r"ILSVRC2012_.*|n[0-9]{8}\.tar")
"""The names of ImageNet's archives, of all images or of a class, which are no shards."""
INDEXED_FIELDS = ("classes", "train_examples", "val_examples")
"""The fields of a dataset that are read from the index of a folder."""


def index_file(folder: Path, split: str) -> Path:
    """Return the path of the file that indexes the images of a split, such as train."""
    return folder / f"{split}.index.npy"


def check_dataset(dataset: str) -> str:
    """Return the subcommand of lsgd.prepare that checks a dataset's images: imagenet or folder.

    The command of ImageNet rejects other classes, and any other one checks no images.
    """
    return dataset if dataset == "imagenet" else "folder"


def prepare_command(
    dataset: str, root: Path, index: Path | None = None, options: Sequence[str] = ()
) -> str:
    """Return the shell command that builds the index of an image dataset.

    The index is built in `index` if given, or else in the folder of the dataset. The options are
    those of a folder of image files; tar shards are prepared without them.
    """
    arguments = ["python", "-m", "lsgd.prepare", dataset, str(root)]
    if (root / "shards.json").exists():
        # Only the imagenet command writes shards.
        arguments[3:] = ["imagenet", "FOLDER_OF_THE_IMAGES", "--shards", str(root)]
        return shlex.join(arguments)
    if _has_shards_alone(root):
        arguments[3], options = "index", ()
    if index and index != root:
        if arguments[3] == dataset:
            arguments[3] = check_dataset(dataset)  # the others have no --index
        arguments += ["--index", str(index)]
    return shlex.join([*arguments, *options])


def _has_shards_alone(root: Path) -> bool:
    """Return whether a dataset has tar shards, there or in the folder of a split, and no images."""
    try:
        if any(not is_leftover(path.name) for path in (root / "train").glob("*/")):
            return False
        archives = [path for name in (".", *SPLITS) for path in (root / name).glob("[!.]*.tar")]
    except OSError:  # a folder whose index can be read, and which cannot be listed
        return False
    return any(not IMAGENET_ARCHIVE.fullmatch(path.name) for path in archives)


def count_images(root: Path, index: Path | None = None) -> dict[str, int]:
    """Read the numbers of classes and of images per split from an image folder's index.

    Raises UsageError without an index. A run that opens the index checks whether it still matches
    the folder.
    """
    make = prepare_command("folder", root, index)
    if not root.is_dir():
        raise UsageError(
            f"data.root={root} is not a folder; write the one that has train/CLASS/ and val/CLASS/ "
            f"with images, which `{make}` indexes"
        )
    train, val = (_size(index_file(index or root, split), make) for split in SPLITS)
    return dict(zip(INDEXED_FIELDS, (train[0], train[1], val[1]), strict=True))


def _size(file: Path, make: str) -> tuple[int, int]:
    """Read the numbers of classes and images from the index file of a split."""
    try:
        labels = np.load(file, mmap_mode="r")["label"]
        # Sorted by label, so that a large file need not be read for its last one.
        return int(labels[-1]) + 1, len(labels)
    except FileNotFoundError:
        raise UsageError(
            f"data=folder takes its numbers of classes and images from {file}, which is missing; "
            f"run {make}"
        ) from None
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise UsageError(f"{file} is not an index ({error}); run {make}") from None


def without_skipped(data: Data) -> Data:
    """Remove the images in a dataset's skip list from its counts, and record their names."""
    path = Path(data.skip_list or "")
    try:
        listed = read_skip_list(path)
    except OSError as error:
        raise UsageError(
            f"data.skip_list={path} cannot be read ({error}); give the skip.txt that --check has "
            f"written, an option of `python -m lsgd.prepare {check_dataset(data.name)}`, or leave "
            "it out"
        ) from None
    skip = sorted(listed.difference(data.skip))
    counted = [*_indexed_paths(data, skip)] if data.name == "folder" else skip
    # Images of further evaluation sets are in none of the counts.
    train, val = (sum(image.startswith(f"{split}/") for image in counted) for split in SPLITS)
    # The skipped images are recorded by name, so that the file is not read again.
    return replace(
        data,
        skip_list=None,
        skip=sorted({*data.skip, *skip}),
        train_examples=data.train_examples - train,
        val_examples=data.val_examples - val,
    )


def _indexed_paths(data: Data, listed: Sequence[str]) -> Iterator[str]:
    """Yield those of some images' paths that the index has; all of a split whose index is unread.

    The index of a folder has no longer an image that was skipped and then removed.
    """
    for split in SPLITS:
        own = [path for path in listed if path.startswith(f"{split}/")]
        if not own:
            continue
        try:
            file = index_file(Path(data.index) if data.index else data.folder, split)
            indexed = np.load(file, mmap_mode="r")["path"]
        except (OSError, ValueError, IndexError, EOFError):  # refused where the index is opened
            yield from own
            continue
        yield from map(os.fsdecode, indexed[rows_of(indexed, own)].tolist())


def rows_of(indexed: NDArray, listed: Collection[str]) -> NDArray:  # type: ignore[type-arg]
    """Return the numbers of the rows of an index, by its paths, whose images are listed.

    It reads the paths in blocks, since sorting as many as ImageNet has takes seconds.
    """
    asked = {os.fsencode(path) for path in listed}
    starts = range(0, len(indexed), BLOCK) if asked else ()
    found = [
        start + row
        for start in starts
        for row, path in enumerate(indexed[start : start + BLOCK].tolist())
        if path in asked
    ]
    return np.array(found, np.int64)


def read_skip_list(file: Path) -> set[str]:
    """Read the paths of the images in a skip list.

    The list has one path per line, and comments behind `#`. Raises UsageError if it is not UTF-8.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"the skip list {file} is not UTF-8; save it as UTF-8") from None
    return {line.partition("#")[0].strip() for line in lines} - {""}
