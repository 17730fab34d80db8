"""The outcome of a benchmark slice, written into its folder as its last file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lsgd.files import atomic_write
from lsgd.run.remaining import duration

DONE = "done"
FAILED = "failed"
OUT_OF_TIME = "out of time"
RESUMABLE = "goes on"
"""The outcome of a training that was preempted at its limit and saved; the next call resumes it."""
STOPPED = "stopped"
"""The outcome of a slice that was stopped together with the whole command."""

FILE = "outcome.json"
LOG = "log.txt"
REPORT = "report"
"""The subfolder of a slice's folder in which its command saves its results."""
PROMPT = "$ "
"""The beginning of the log's line with the command, written at each start."""


@dataclass(frozen=True)
class SliceOutcome:
    """The outcome of a benchmark slice's last start, and the duration of all its starts."""

    outcome: str
    why: str
    """The reason of a failure, with the last line of the log; empty without a failure."""
    command: str
    seconds: float
    """The duration in seconds of all starts that have ended."""
    version: str
    """The version and commit of the lsgd that was run."""

    def __str__(self) -> str:
        return f"{self.outcome}, {duration(self.seconds)}"


def read_outcome(folder: Path) -> SliceOutcome | None:
    """Return the outcome of a benchmark slice by its folder, or None if no start has ended."""
    try:
        return SliceOutcome(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write_outcome(folder: Path, outcome: SliceOutcome) -> None:
    """Write a benchmark slice's outcome into its folder atomically."""
    with atomic_write(folder / FILE) as file:
        file.write(json.dumps(asdict(outcome), indent=1).encode() + b"\n")


def is_done(folder: Path) -> bool:
    """Return whether the benchmark slice with this folder has its result."""
    outcome = read_outcome(folder)
    return outcome is not None and outcome.outcome == DONE


def starts(folder: Path) -> int:
    """Return how often the benchmark slice with this folder was started, killed starts included."""
    if not (folder / LOG).exists():
        return 0
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(line.startswith(PROMPT) for line in lines)
