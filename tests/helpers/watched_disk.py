"""The order in which files of a folder are synchronized to the disk and get their names."""

import os
from pathlib import Path

import pytest


def watched_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each fsync and each move in a folder is appended from now on."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        done.append(f"sync {Path(target).relative_to(folder)}")
        fsync(descriptor)

    def watched_replace(a: Path, b: Path) -> None:
        done.append(f"move {a.name} to {b.name}")
        rename(a, b)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    return done
