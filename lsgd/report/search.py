"""Which run folders there are, and which folders no number can be taken from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsgd.errors import Refused
from lsgd.run.read import NotARun, Run, read_run

REPORT = "summary.json"
"""The file that marks the folder of a report; the copies of runs in it are no runs of their own."""


@dataclass(frozen=True)
class LeftOut:
    """A folder that counts for nothing in a report, and why."""

    path: Path
    reason: str


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[LeftOut]]:
    """The runs in these folders and below them, in order; and all other folders met on the way.

    Raises Refused if one of the paths is no folder.
    """
    for path in paths:
        if not path.is_dir():
            raise Refused(f"{path} is no folder; write run folders, or folders that have them")
    runs, left_out, seen = [], [], set[Path]()
    for folder in (folder for path in paths for folder in _folders(path, seen)):
        try:
            if (folder / REPORT).exists():
                raise NotARun("it is a report; give it by itself to have the runs in it again")
            runs.append(read_run(folder))
        except NotARun as error:
            left_out.append(LeftOut(folder, str(error)))
    return runs, left_out


def _folders(path: Path, seen: set[Path], *, is_argument: bool = True) -> Iterator[Path]:
    """The folder itself if it looks like a run's or a report's or has no folders, else those below.

    A folder that was seen before, by another name or within another argument, is skipped.
    """
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    try:
        inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        inner = []
    # A report that is an argument itself is searched for the copies of runs in it.
    own = ["config.yaml", "metrics.jsonl", *([] if is_argument else [REPORT])]
    if not inner or any((path / name).exists() for name in own):
        yield path
        return
    for folder in inner:
        yield from _folders(folder, seen, is_argument=False)
