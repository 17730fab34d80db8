"""The search for run folders below given paths, and the folders that cannot be used."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.paths import is_leftover
from lsgd.report import run_archive
from lsgd.run.read import NotARunError, Run, read_run, without_side_files

REPORT = "summary.json"
"""The file that marks a report's folder, whose copies of runs are not counted again."""
CONFIGURATIONS = "arms"
"""The folder in a report's folder with one configuration per recipe."""


@dataclass(frozen=True)
class SkippedFolder:
    """A folder that a report skips, and the reason."""

    path: Path
    reason: str
    damaged: bool = False
    """Whether the folder has files of a run that cannot be read or understood."""


def find_runs(
    paths: Sequence[Path], *, train_rows: bool = True
) -> tuple[list[Run], list[SkippedFolder]]:
    """Read the runs in or below these folders in order, and list the folders that were skipped.

    Without `train_rows` a run keeps only the train rows that its properties need. The files beside
    a given run folder, such as its log, are left out. Raises UsageError if one of the other paths
    is no folder.
    """
    paths = without_side_files(paths)
    for path in paths:
        if not path.is_dir():
            raise UsageError(
                f"{path} is not a folder; write run folders, or folders that contain some"
            )
    runs: list[Run] = []
    left_out: list[SkippedFolder] = []
    seen: set[Path] = set()
    for folder in (folder for path in paths for folder in _folders(path, seen, left_out)):
        try:
            if (folder / REPORT).exists():
                raise NotARunError("it is a report; give it alone to report on its runs again")
            runs.append(read_run(folder, train_rows=train_rows))
        except NotARunError as error:
            left_out.append(SkippedFolder(folder, str(error), damaged=_has_run(folder)))
        except OSError as error:
            why = f"it cannot be read ({error.strerror})"
            left_out.append(SkippedFolder(folder, why, damaged=True))
    return runs, left_out


def _has_run(folder: Path) -> bool:
    """Return whether a folder has both files of a run, valid or not, and is no report."""
    names = ("config.yaml", "metrics.jsonl")
    return all(os.path.exists(folder / name) for name in names) and not (folder / REPORT).exists()


def _folders(
    path: Path,
    seen: set[Path],
    left_out: list[SkippedFolder],
    *,
    is_argument: bool = True,
    is_archive: bool = False,
) -> Iterator[Path]:
    """Yield the folders below a path, or in its archive, that look like runs or reports.

    A folder without subfolders is yielded too. A folder that was seen before, by another name or
    within another argument, is skipped, and so are hidden and system folders, but not in an
    archive. An archive that cannot be read is added to the skipped ones.
    """
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    try:
        inner = sorted(
            entry
            for entry in path.iterdir()
            if entry.is_dir() and (is_archive or not is_leftover(entry.name))
        )
    except OSError:
        inner = []
    # A report that is itself an argument is searched for its copies of runs.
    own = ["config.yaml", "metrics.jsonl", *([] if is_argument else [REPORT])]
    is_one = any(os.path.exists(path / name) for name in own)
    unpacked = None
    if not is_one and os.path.exists(path / run_archive.FILE):
        if (path / REPORT).exists():  # whose configurations the archive has too
            inner = [folder for folder in inner if folder.name != CONFIGURATIONS]
        try:
            unpacked = run_archive.unpack(path / run_archive.FILE)
            inner.append(unpacked)
        except UsageError as error:
            left_out.append(SkippedFolder(path / run_archive.FILE, str(error), damaged=True))
    if not inner or is_one:
        yield path
        return
    for folder in inner:
        is_of_archive = is_archive or folder == unpacked
        yield from _folders(folder, seen, left_out, is_argument=False, is_archive=is_of_archive)
