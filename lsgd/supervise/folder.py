"""The run folder as the supervisor sees it from outside, without torch."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lsgd.errors import Refused

METRICS, CHECKPOINT = "metrics.jsonl", "checkpoint.pt"


def run_folder(command: Sequence[str]) -> Path:
    """The folder that the command's `run_dir=` names; raises Refused without one."""
    folders = [
        word.partition("=")[2].strip("'\"") for word in command if word.startswith("run_dir=")
    ]
    if not folders:
        raise Refused(
            "the command names no run folder, so each start would begin another run; add for "
            "example run_dir=runs/a"
        )
    return Path(folders[-1]).absolute()


def last_step(folder: Path) -> int:
    """The last step that the run's metrics tell of; 0 without any."""
    step = 0
    with suppress(FileNotFoundError):
        for line in (folder / METRICS).read_bytes().splitlines():
            # The last line may be cut short.
            with suppress(ValueError, KeyError):
                step = json.loads(line)["step"]
    return step


def newest_checkpoint(folder: Path) -> tuple[int, int] | None:
    """Inode and time (ns) of the newest checkpoint, which tell it from the next; None if none."""
    try:
        status = (folder / CHECKPOINT).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def last_written(folder: Path) -> float:
    """When the run last wrote metrics or a checkpoint, in seconds since 1970."""
    times = [0.0]
    for name in (METRICS, CHECKPOINT):
        with suppress(FileNotFoundError):
            times.append((folder / name).stat().st_mtime)
    return max(times)
