"""The files of a dataset that its readers open: their names, their sizes and the state they are in.

Of indexed images they are the index files of the sets that are used and what those list, so that
archives and other files beside them do not count. Of any other dataset they are all files of its
folder.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from lsgd.inputs.index import ImageIndex, check_paths, index_file
from lsgd.paths import files_below

SUFFIX = index_file(Path(), "").name
"""The end of the name of an index file."""

FileState = tuple[str, int, int]
"""The name of a file or folder, its size in bytes and the time of its last change in ns."""


class SourceFiles(Protocol):
    """The interface of a dataset's files; their names are relative to the folder of the dataset."""

    root: Path
    index: Path
    """The folder of the index files, or that of the dataset."""

    def names_and_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the size in bytes of each file."""

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders that a reader expects even without a file in them."""

    def state(self) -> list[FileState]:
        """Return the states of files and folders, one of which differs once the dataset changes.

        Raises OSError if one of them is missing.
        """

    def path(self, name: str) -> Path:
        """Return where the file of this name is read from."""


class IndexedFiles:
    """The index files of sets of an image dataset, and the shards or images that they list."""

    def __init__(
        self, root: Path, index: Path, sets: Sequence[str], skip: Collection[str] = ()
    ) -> None:
        self.root, self.index, self.skip = root, index, {*map(os.fsencode, skip)}
        self.indexes = sorted(index_file(index, name).name for name in sets)

    def path(self, name: str) -> Path:
        """Return where a file is read from: the folder of the index or that of the images."""
        return (self.index if name in self.indexes else self.root) / name

    def names_and_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the name and size of each index file and of each shard or image.

        The size of an image is that in the index, as a million files would take minutes to ask.
        Skipped images are left out, of which the files may be unreadable. Raises ValueError for a
        name outside of the dataset's folder.
        """
        names = list(self.indexes)
        for split, index in self._opened():
            check_paths(index.rows, split)
            if index.in_shards():
                names += _shards(index)
                continue
            for path, size in zip(index.rows["path"], index.rows["bytes"], strict=True):
                if path not in self.skip:
                    yield os.fsdecode(path), int(size)
        for name in dict.fromkeys(names):
            yield name, self.path(name).stat().st_size

    def state(self) -> list[FileState]:
        """Return the states of the index files and of the shards, or of the folders of classes."""
        names = [*self.indexes, *self.folders()]
        for _, index in self._opened():
            if index.in_shards():
                names += _shards(index)
        return [_state(name, self.path(name)) for name in dict.fromkeys(names)]

    def folders(self) -> Iterator[str]:
        """Yield the folder of each class that the indexes list, of which all may be skipped."""
        for _, index in self._opened():
            if not index.in_shards():
                _, first = np.unique(index.rows["label"], return_index=True)
                yield from (
                    os.path.dirname(os.fsdecode(each)) for each in index.rows["path"][first]
                )

    def _opened(self) -> Iterator[tuple[str, ImageIndex]]:
        for name in self.indexes:
            yield name.removesuffix(SUFFIX), ImageIndex(self.root, self.index / name)


class FolderFiles:
    """All files of a dataset's folder, without hidden and system files."""

    def __init__(self, root: Path) -> None:
        self.root = self.index = root

    def path(self, name: str) -> Path:
        """Return where the file of this name is read from."""
        return self.root / name

    def names_and_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the name and size of each file."""
        yield from ((name, size) for name, size, _ in self.state())

    def folders(self) -> Iterator[str]:
        """Yield nothing: a folder without files holds nothing to read."""
        yield from ()

    def state(self) -> list[FileState]:
        """Return the states of all files, in the order of their names."""
        names = (name for name in files_below(self.root) if self.path(name).is_file())
        return sorted(_state(name, self.path(name)) for name in names)


def _shards(index: ImageIndex) -> list[str]:
    return [os.fsdecode(shard) for shard in np.unique(index.rows["shard"])]


def _state(name: str, path: Path) -> FileState:
    status = path.stat()
    return name, status.st_size, status.st_mtime_ns
