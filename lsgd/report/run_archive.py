"""The archive of a report's runs: one file with their configurations and rows, read like folders.

It is a tar file compressed by xz, about a sixth of the size of the text.
"""

import io
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

from lsgd.errors import UsageError
from lsgd.untrusted_files import open_regular

FILE = "runs.tar.xz"
MOST = 2**32
"""The most bytes of plain files that an archive may unpack to."""


def pack(files: Mapping[str, bytes | Path], archive: BinaryIO) -> None:
    """Pack files of runs as tar.xz, each from its content or another file, one after the other.

    Equal files give equal bytes.
    """
    # A report is often written again: the default preset takes ten times as long, the half of a
    # report's time, for a sixth fewer bytes.
    with tarfile.open(fileobj=archive, mode="w:xz", preset=2) as tar:
        for name, source in sorted(files.items()):
            file = open_regular(source) if isinstance(source, Path) else io.BytesIO(source)
            with file:
                member = tarfile.TarInfo(name)
                member.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                tar.addfile(member, file)


def unpack(archive: Path) -> Path:
    """Unpack a report's archive of runs to a folder that exists until the process ends.

    Raises UsageError if it is no such archive, or has a member that is no plain file below its
    root.
    """
    folder = Path(_unpacked(archive.resolve()).name)
    _archives[folder] = archive
    return folder


_archives: dict[Path, Path] = {}
"""The archives that were unpacked, by the folder of their files."""


def displayed_path(path: Path) -> Path:
    """Return a path as texts show it: of an unpacked file, within the archive that it is from."""
    for folder, archive in _archives.items():
        if path.is_relative_to(folder):
            return archive / path.relative_to(folder)
    return path


@cache
def _unpacked(archive: Path) -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix=f"lsgd-{archive.parent.name}-")
    unread = MOST
    try:
        with (
            open_regular(archive) as file,
            lzma.open(file) as plain,
            tarfile.open(fileobj=plain, mode="r:") as tar,
        ):
            for member in tar:
                unread -= member.size
                content = tar.extractfile(member) if member.isreg() and unread > 0 else None
                if content is None or {"", ".."} & {*member.name.split("/")}:
                    raise tarfile.TarError(f"{member.name} is not a file of a run")
                path = Path(folder.name, member.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("xb") as copy:
                    shutil.copyfileobj(content, copy)
            while plain.read(2**20):  # up to the checksum at the end: an archive that was
                pass  # truncated within tar's padding still has all its members
    except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        folder.cleanup()
        raise UsageError(
            f"{archive} is not an archive of runs ({error}); restore or remove it"
        ) from None
    return folder
