"""The supervisor's view of the run folder, without torch."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.override_syntax import last_path
from lsgd.paths import CHECKPOINT, existing_checkpoint
from lsgd.run.rows import STRAGGLER, read_last_rows
from lsgd.sanitizing import sanitize

METRICS = "metrics.jsonl"
EPOCHS, REPEATED = 10, 3
"""The last epochs in which stragglers are counted, and in how many a host has to be one.

In one epoch anything may have disturbed a machine for a while; in most of them it is the machine.
"""
UNKNOWN = (0, 0, 0)
"""The version of a file that the file server does not answer for."""


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


def repeated_straggler(folder: Path) -> str:
    """Return which host made the others wait in most of a run's last epochs, or ''.

    They are the last EPOCHS epochs in the last rows of its metrics.jsonl. The text names the host,
    the number of epochs and the check to run.
    """
    with suppress(OSError):
        rows = [row for row in read_last_rows(folder / METRICS) if isinstance(row, dict)]
        hosts = [row.get(STRAGGLER) for row in rows if row.get("kind") == "epoch"][-EPOCHS:]
        named = Counter(host for host in hosts if isinstance(host, str))
        for host, count in named.most_common(1):
            if count >= REPEATED and 2 * count > len(hosts):
                return (
                    f"{sanitize(host)} made the others wait in {count} of the last {len(hosts)} "
                    "epochs; --check after the launch command measures all nodes"
                )
    return ""


def newest_checkpoint(folder: Path) -> tuple[int, int, int] | None:
    """Return a value that identifies a run's newest checkpoint file, or None if there is none."""
    return _file_version(folder / CHECKPOINT)


def progress_marker(folder: Path) -> list[tuple[int, int, int]]:
    """Return a value that changes whenever the run writes metrics or a checkpoint.

    Times may come from a file server whose clock differs from this machine's: they are compared
    with each other only.
    """
    versions = map(_file_version, (folder / METRICS, folder / CHECKPOINT))
    return [version for version in versions if version]


def _file_version(path: Path) -> tuple[int, int, int] | None:
    """Return inode, length and mtime (ns) of a file; None if it is missing.

    An error of the file server must not end the job that is only watched: the version is UNKNOWN.
    It counts as a checkpoint that was saved, so that no process is given up for it, and not as
    progress of a job that may have stalled.
    """
    try:
        status = existing_checkpoint(path).stat()
    except FileNotFoundError:
        return None
    except OSError:
        return UNKNOWN
    return status.st_ino, status.st_size, status.st_mtime_ns
