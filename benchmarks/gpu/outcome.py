"""What has become of a slice: kept in its folder, and written last."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lsgd.files import whole
from lsgd.run.remaining import duration

DONE = "done"
FAILED = "failed"
LATE = "out of time"
GOES_ON = "goes on"
"""It was told to leave at its limit, and has saved: the next call goes on from there."""
STOPPED = "stopped"
"""The whole command was told to end."""

FILE = "outcome.json"
LOG = "log.txt"
REPORT = "report"
"""The folder in a slice's own in which its command keeps what it has found."""
PROMPT = "$ "
"""What each start writes into the log first, before its command."""


@dataclass(frozen=True)
class Outcome:
    """The end of the last start of a slice, and what all of them took."""

    outcome: str
    why: str
    """How it failed, with the last line of its log; empty if it did not."""
    command: str
    seconds: float
    """Of all starts that came to an end."""
    version: str
    """The lsgd that was run, with its commit."""

    def __str__(self) -> str:
        return f"{self.outcome}, {duration(self.seconds)}"


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome of the slice with this folder; None if no start of it has come to an end."""
    try:
        return Outcome(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the outcome into the folder, whole or not at all."""
    with whole(folder / FILE) as file:
        file.write(json.dumps(asdict(outcome), indent=1).encode() + b"\n")


def is_done(folder: Path) -> bool:
    """Whether the slice with this folder has its result."""
    outcome = read_outcome(folder)
    return outcome is not None and outcome.outcome == DONE


def starts(folder: Path) -> int:
    """How often the slice with this folder was started; starts that were killed count too."""
    if not (folder / LOG).exists():
        return 0
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(line.startswith(PROMPT) for line in lines)
