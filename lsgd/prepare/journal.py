"""Findings about the files of each folder, on disk as they come: a killed command goes on."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsgd.inputs.index import image_files


@dataclass(frozen=True)
class FolderFindings:
    """The findings in one folder, from which those on an unchanged file need not be made again."""

    folder: str
    """The path of the folder relative to the root, such as train/n01440764."""
    begun: float
    """The time when the look began, as of time.time(); files changed since are looked at again."""
    files: dict[str, tuple[int, Any]]
    """By file name, the length in bytes and what `look` returned."""


def look_at_folder(
    root: Path, folder: str, look: Callable[[Path], Any], earlier: FolderFindings | None
) -> FolderFindings:
    """The result of `look` for each image of a folder; that of an unchanged file is an earlier one.

    `look` returns what JSON can hold.
    """
    begun = time.time()
    files: dict[str, tuple[int, Any]] = {}
    for name in image_files(root / folder):
        path = root / folder / name
        status = path.stat()
        known = earlier.files.get(name) if earlier else None
        # ctime too: a file moved here keeps the mtime of where it was.
        changed = max(status.st_mtime, status.st_ctime)
        if earlier and known and known[0] == status.st_size and changed < earlier.begun:
            files[name] = (status.st_size, known[1])
        else:
            files[name] = (status.st_size, look(path))
    return FolderFindings(folder, begun, files)


class Journal:
    """A file with the findings of one folder per line, appended to until it is removed.

    A last line that a kill cut short is left out.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.findings: dict[str, FolderFindings] = {}
        if file.exists():
            whole = 0
            with file.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    entry = FolderFindings(**json.loads(line))
                    self.findings[entry.folder] = entry
                    whole += len(line)
            # Else the next line would be appended to one that was cut short.
            os.truncate(file, whole)

    def add(self, findings: FolderFindings) -> None:
        """Add the findings of a folder to the file."""
        with self.file.open("ab") as lines:
            lines.write(json.dumps(asdict(findings)).encode() + b"\n")
        self.findings[findings.folder] = findings

    def remove(self) -> None:
        """Remove the file, once the result of all findings is on disk."""
        self.file.unlink(missing_ok=True)
