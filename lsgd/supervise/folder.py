"""The supervisor's view of the run folder, without torch."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.override_syntax import last_path
from lsgd.run.rows import read_last_rows

METRICS, CHECKPOINT = "metrics.jsonl", "checkpoint.pt"


def run_folder(command: Sequence[str]) -> Path:
    """Return the run folder in the command's `run_dir=` override; raise UsageError without one."""
    folder = last_path(command, "run_dir")
    if folder is None:
        raise UsageError(
            "the command has no run_dir, so each restart would begin another run; add for "
            "example run_dir=runs/a"
        )
    return Path(folder).absolute()


def last_step(folder: Path) -> int:
    """Return the number of steps in the last row of a run's metrics.jsonl; 0 without any."""
    with suppress(OSError):
        for row in reversed(read_last_rows(folder / METRICS)):
            match row:
                case {"step": int(step)}:
                    return step
    return 0


def newest_checkpoint(folder: Path) -> tuple[int, int] | None:
    """Return inode and mtime (ns), which identify a run's newest checkpoint file, or None."""
    try:
        status = (folder / CHECKPOINT).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def progress_marker(folder: Path) -> list[tuple[int, int, int]]:
    """Return a value that changes whenever the run writes metrics or a checkpoint.

    It has inode, length and mtime (ns) of each file. Times may come from a file server whose clock
    differs from this machine's: they are compared with each other only.
    """
    found = []
    for name in (METRICS, CHECKPOINT):
        with suppress(FileNotFoundError):
            status = (folder / name).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found
