"""What has been found out about the files of each folder, kept while it is found out."""

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
    """What was found in one folder: per file its length in bytes and whatever was looked for."""

    folder: str
    """Relative to the root: train/n01440764."""
    begun: float
    """When looking began; of files changed since, these findings say nothing."""
    files: dict[str, tuple[int, Any]]


def look_at_folder(
    root: Path, folder: str, look: Callable[[Path], Any], earlier: FolderFindings | None
) -> FolderFindings:
    """What `look` returns for each image of a folder; what has not changed is not looked at again.

    Values are such as JSON can hold.
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
    """A file of findings, a folder a line, appended as they come, removed when all are in.

    After a kill the last line may be cut; it is left out then.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, FolderFindings] = {}
        if file.exists():
            whole = 0
            with file.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    read = FolderFindings(**json.loads(line))
                    self.found[read.folder] = read
                    whole += len(line)
            os.truncate(file, whole)

    def add(self, findings: FolderFindings) -> None:
        """Keep the findings of a folder."""
        with self.file.open("ab") as lines:
            lines.write(json.dumps(asdict(findings)).encode() + b"\n")
        self.found[findings.folder] = findings

    def remove(self) -> None:
        """Remove the file: what it was for is done."""
        self.file.unlink(missing_ok=True)
