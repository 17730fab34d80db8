"""The indexing of an image folder: paths, labels and sizes of its images."""

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lsgd.inputs.index import SPLITS, IndexRow, class_folders, index_file, write_index
from lsgd.prepare import MAX_PIXELS
from lsgd.prepare.images import usable_size
from lsgd.prepare.journal import FolderFindings, Journal, inspect_folder
from lsgd.prepare.process_pool import in_parallel


def index_folder(
    root: Path,
    index: Path | None = None,
    *,
    processes: int = 1,
    max_pixels: int = MAX_PIXELS,
    sets: Sequence[str] = (),
) -> list[str]:
    """Write index files of the images in root/train, root/val and `sets`; return unusable images.

    Only files that are new, changed or unusable since an older index are opened. Returns the paths
    of files that not every loader reads completely and equally, or that have more than `max_pixels`
    pixels; their size in the index is 0 x 0. Classes are numbered by the order of their folders in
    root/train, of which root/val and the folders of `sets` may lack some.
    """
    folder = index or root
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for split in (*SPLITS, *sets)
        for path in _index_split(root, folder, split, processes, max_pixels)
    ]


def _index_split(
    root: Path, folder: Path, split: str, processes: int, max_pixels: int
) -> list[str]:
    """Write the index file of one split's images, and return the paths of unusable ones."""
    begun = time.time()
    journal = Journal(folder / f"{split}.scan.jsonl")
    known = _known(index_file(folder, split)) | journal.findings
    classes = class_folders(root / split)
    names = [f"{split}/{name}" for name in classes]
    for findings in in_parallel(
        _sizes,
        [(root, name, known.get(name), max_pixels) for name in names],
        processes=processes,
        what=f"headers of {split}",
    ):
        journal.add(findings)
        begun = min(begun, findings.begun)
    folders = [journal.findings[name] for name in names]
    numbers = {name: number for number, name in enumerate(class_folders(root / SPLITS[0]))}
    if not {*classes} <= numbers.keys():  # such a folder is rejected before a run
        numbers = {name: number for number, name in enumerate(classes)}
    file = write_index(folder, split, _rows(folders, [numbers[name] for name in classes]))
    # A file that changed after the scan began must be newer than the index, to be read again.
    os.utime(file, (begun, begun))
    journal.remove()
    return [
        f"{findings.folder}/{name}"
        for findings in folders
        for name, (_, (width, _)) in findings.files.items()
        if width == 0
    ]


def _sizes(
    root: Path, folder: str, earlier: FolderFindings | None, max_pixels: int
) -> FolderFindings:
    """Read the sizes of the images in one class folder, reusing earlier ones that still hold."""
    return inspect_folder(
        root, folder, partial(usable_size, max_pixels=max_pixels), earlier,
        is_valid=lambda stored: 0 < stored[0] * stored[1] <= max_pixels,
    )  # fmt: skip


def _rows(folders: list[FolderFindings], labels: list[int]) -> Iterator[IndexRow]:
    """Yield the rows of an image index, whose images have the label of their folder."""
    for label, findings in zip(labels, folders, strict=True):
        for name, (length, (width, height)) in findings.files.items():
            path = os.fsencode(f"{findings.folder}/{name}")
            yield path, b"", 0, length, label, width, height


def _known(file: Path) -> dict[str, FolderFindings]:
    """Read the image sizes from an older index, by folder; return an empty dict without one."""
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
