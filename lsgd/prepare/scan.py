"""From an image folder to its index: what is there, and how large the images are."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lsgd.inputs.index import SPLITS, IndexRow, class_folders, index_file, write_index
from lsgd.prepare.images import size
from lsgd.prepare.journal import FolderFindings, Journal, look_at_folder
from lsgd.prepare.workers import in_parallel


def index_folder(root: Path, index: Path | None = None, *, processes: int = 1) -> list[str]:
    """Write the indexes of root/train and root/val, of any classes, to `index` or to the root.

    Only files that are new or changed since an older index are opened. Returns the images
    that are none, or not whole, whose size in the index is 0 x 0.
    """
    folder = index or root
    folder.mkdir(parents=True, exist_ok=True)
    return [path for split in SPLITS for path in _index_split(root, folder, split, processes)]


def _index_split(root: Path, folder: Path, split: str, processes: int) -> list[str]:
    begun = time.time()
    journal = Journal(folder / f"{split}.scan.jsonl")
    known = _known(index_file(folder, split)) | journal.found
    classes = class_folders(root / split)
    names = [f"{split}/{name}" for name in classes]
    for findings in in_parallel(
        _sizes,
        [(root, name, known.get(name)) for name in names],
        processes=processes,
        what=f"headers of {split}",
    ):
        journal.add(findings)
        begun = min(begun, findings.begun)
    found = [journal.found[name] for name in names]
    file = write_index(folder, split, _rows(found))
    # What changes from here on is newer than the index, even if it was read before.
    os.utime(file, (begun, begun))
    journal.remove()
    return [
        f"{each.folder}/{name}"
        for each in found
        for name, (_, (width, _)) in each.files.items()
        if width == 0
    ]


def _sizes(root: Path, folder: str, earlier: FolderFindings | None) -> FolderFindings:
    return look_at_folder(root, folder, size, earlier)


def _rows(found: list[FolderFindings]) -> Iterator[IndexRow]:
    for label, each in enumerate(found):
        for name, (length, (width, height)) in each.files.items():
            path = os.fsencode(f"{each.folder}/{name}")
            yield path, b"", 0, length, label, width, height


def _known(file: Path) -> dict[str, FolderFindings]:
    """What an older index says, as the findings of its folders."""
    try:
        rows, made = np.load(file), file.stat().st_mtime
        columns = rows[["path", "bytes", "width", "height"]].tolist()
    except (OSError, ValueError, IndexError, EOFError):
        return {}
    known: dict[str, FolderFindings] = {}
    for path, length, width, height in columns:
        folder, _, name = os.fsdecode(path).rpartition("/")
        findings = known.setdefault(folder, FolderFindings(folder, made, {}))
        findings.files[name] = length, (width, height)
    return known
