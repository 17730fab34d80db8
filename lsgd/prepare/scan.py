"""From an image folder to its index: the images, their labels and their sizes."""

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

    Only files that are new or changed since an older index are opened. Returns the paths of
    files that are no whole image that every loader reads alike; their size in the index is 0 x 0.
    """
    folder = index or root
    folder.mkdir(parents=True, exist_ok=True)
    return [path for split in SPLITS for path in _index_split(root, folder, split, processes)]


def _index_split(root: Path, folder: Path, split: str, processes: int) -> list[str]:
    begun = time.time()
    journal = Journal(folder / f"{split}.scan.jsonl")
    known = _known(index_file(folder, split)) | journal.findings
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
    folders = [journal.findings[name] for name in names]
    file = write_index(folder, split, _rows(folders))
    # A file that changed after the scan began has to be newer than the index, to be read again.
    os.utime(file, (begun, begun))
    journal.remove()
    return [
        f"{findings.folder}/{name}"
        for findings in folders
        for name, (_, (width, _)) in findings.files.items()
        if width == 0
    ]


def _sizes(root: Path, folder: str, earlier: FolderFindings | None) -> FolderFindings:
    return look_at_folder(root, folder, size, earlier)


def _rows(folders: list[FolderFindings]) -> Iterator[IndexRow]:
    for label, findings in enumerate(folders):
        for name, (length, (width, height)) in findings.files.items():
            path = os.fsencode(f"{findings.folder}/{name}")
            yield path, b"", 0, length, label, width, height


def _known(file: Path) -> dict[str, FolderFindings]:
    """The findings of an older index by folder; none if there is no index that can be read."""
    try:
        rows, written = np.load(file), file.stat().st_mtime
        columns = rows[["path", "bytes", "width", "height"]].tolist()
    except (OSError, ValueError, IndexError, EOFError):
        return {}
    known: dict[str, FolderFindings] = {}
    for path, length, width, height in columns:
        folder, _, name = os.fsdecode(path).rpartition("/")
        findings = known.setdefault(folder, FolderFindings(folder, written, {}))
        findings.files[name] = length, (width, height)
    return known
