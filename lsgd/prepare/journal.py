"""The journal of findings on the files of each folder, from which a killed command resumes."""

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from lsgd.errors import UsageError
from lsgd.inputs.index import image_files
from lsgd.typed import convert_json
from lsgd.untrusted_files import parse_json


@dataclass(frozen=True)
class FolderFindings:
    """The findings on the images of one folder, reusable as long as a file is unchanged."""

    folder: str
    """The path of the folder relative to the root, such as train/n01440764."""
    begun: float
    """The time.time() at which the inspection began; files changed since are inspected again."""
    files: dict[str, tuple[int, Any]]
    """The length in bytes and the result of the inspection, by file name."""


def inspect_folder(
    root: Path,
    folder: str,
    inspect: Callable[[Path], Any],
    earlier: FolderFindings | None,
    *,
    is_valid: Callable[[Any], bool],
) -> FolderFindings:
    """Inspect each image of a folder, reusing earlier findings on unchanged files.

    `inspect` returns a value that JSON can represent. `is_valid` returns whether inspecting the
    same file again would give the same finding: whether an image is too large depends on the limit.
    """
    begun = time.time()
    files: dict[str, tuple[int, Any]] = {}
    for name in image_files(root / folder):
        path = root / folder / name
        try:
            status = path.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            raise UsageError(
                f"{path} is a link to a file that does not exist; repair or remove it, like all "
                "that find -L ROOT -type l lists, and rerun the same command"
            ) from None
        if not S_ISREG(status.st_mode):
            raise UsageError(f"{path} is a pipe, a socket or a device, not an image; remove it")
        known = earlier.files.get(name) if earlier else None
        # ctime too: a moved file keeps its mtime.
        changed = max(status.st_mtime, status.st_ctime)
        same = earlier and known and known[0] == status.st_size and changed < earlier.begun
        if known and same and is_valid(known[1]):
            files[name] = (status.st_size, known[1])
        else:
            files[name] = (status.st_size, inspect(path))
    return FolderFindings(folder, begun, files)


class Journal:
    """The journal file of an inspection, a folder's findings on a line, to resume after a kill.

    An incomplete last line, as a kill leaves, is dropped. So are all findings that were made with
    another limit on the pixels of an image than `max_pixels`, unless that is None.
    """

    def __init__(self, file: Path, max_pixels: int | None = None) -> None:
        self.file = file
        self.findings: dict[str, FolderFindings] = {}
        if file.exists():
            whole = 0
            with file.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    try:
                        entry: FolderFindings = convert_json(FolderFindings, parse_json(line))
                    except ValueError:  # not a line of a journal
                        break
                    self.findings[entry.folder] = entry
                    whole += len(line)
            # Otherwise the next line would continue an incomplete one.
            os.truncate(file, whole)
        if max_pixels is not None:
            limit = FolderFindings("", 0.0, {"": (max_pixels, None)})
            if self.findings.pop("", None) != limit:
                self.findings.clear()
                file.unlink(missing_ok=True)
                self.add(limit)
                del self.findings[""]

    def add(self, findings: FolderFindings) -> None:
        """Append the findings on one folder to the journal file."""
        with self.file.open("ab") as lines:
            lines.write(json.dumps(asdict(findings)).encode() + b"\n")
        self.findings[findings.folder] = findings

    def remove(self) -> None:
        """Remove the journal file, once the result of all findings is on disk."""
        self.file.unlink(missing_ok=True)
