"""File operations that are atomic, locked or robust against a full disk."""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from lsgd.errors import DISK_FULL_ERRNOS, UsageError, dangling_link

BLOCK = 2**16
"""The bytes of a file that are read at a time."""
NAME_MAX = 255
"""The most bytes in the name of a file, on nearly all file systems."""
FileContent = bytes | Callable[[BinaryIO], object]
"""The content of a file to write, or a function that writes it."""


def create_empty(path: Path) -> BinaryIO:
    """Create an empty file and open it for writing; an existing file is truncated, a link removed.

    A link in another user's folder could lead to any file of this user.
    """
    if path.is_symlink():
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def sync_file(file: BinaryIO) -> None:
    """Write what an open file holds back to the disk, and wait until it is there."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, so that none is lost in a power failure.

    Nothing is waited for where the drive or the folder's permissions do not allow it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder may be writable alone
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return the path of the temporary file that `atomic_write` renames to `path`.

    A name to which a file system would not let it add some bytes is replaced by its digest.
    """
    name = f".{path.name}.part"
    if len(os.fsencode(name)) > NAME_MAX:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.part"
    return path.with_name(name)


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces the file at `path` if the context ends without error.

    After a power failure the file is the old or the new one; without `sync` it may be empty, which
    is for thousands of files that can be written again. If the disk is full, the temporary file is
    removed and the OSError names `path`.
    """
    partial = partial_path(path)
    try:
        with create_empty(partial) as file:
            yield file
            if sync:
                sync_file(file)
        os.replace(partial, path)
        if sync:
            sync_folder(path.parent)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            with suppress(OSError):
                partial.unlink()
            error.filename = str(path)
        raise


def write_files(folder: Path, contents: Mapping[str, FileContent]) -> None:
    """Write files into a folder in this order, each atomically, with the folders in their names."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            if callable(content):
                content(file)
            else:
                file.write(content)


def check_new_file(path: Path, option: str) -> None:
    """Raise UsageError, before any work, unless a command can write a new file at this path.

    `option` is the one of the command line that names the file, such as --out.
    """
    folder = path.parent
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{option} {path} exists already and is not overwritten; write another file"
        )
    if not folder.is_dir():
        raise UsageError(
            f"{option} {path} cannot be written, as {folder} is not a folder; make it, or write a "
            "file in a folder that exists"
        )
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"{option} {path} cannot be written, as {folder} is not yours to write to; write a "
            "file in another folder"
        )


def make_output_folder(folder: Path) -> None:
    """Make a command's output folder (--out), unless it exists, before the work for its files.

    Raises UsageError if it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        link = dangling_link(error)
        if isinstance(error, FileExistsError) and not link:
            raise UsageError(f"--out {folder} is a file; write a folder") from None
        raise UsageError(
            f"--out {folder} cannot be made ({link or error.strerror}); write another folder"
        ) from None
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"--out {folder} cannot be written, as it is not yours to write to; write another "
            "folder"
        )


@contextmanager
def create_output_folder(
    folder: Path | None, *, keep_partial: bool = False
) -> Iterator[Path | None]:
    """Create a command's output folder (--out) for this context; remove it if the context fails.

    It is created at once, before another process can, and also removed if it stays empty. With
    `keep_partial` it is kept after a failure, since partial results took hours and are of use.
    Without a folder the context has None. Raises UsageError if the folder exists or cannot be made.
    """
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        link = dangling_link(error)
        if isinstance(error, FileExistsError) and not link:
            raise UsageError(
                f"--out {folder} exists already, and results are never overwritten; write another"
            ) from None
        raise UsageError(
            f"--out {folder} cannot be made ({link or error.strerror}); write another"
        ) from None
    complete = False
    try:
        yield folder
        complete = True
    finally:
        if not (complete or keep_partial) or not any(folder.iterdir()):
            shutil.rmtree(folder)


class NoLocksError(UsageError):
    """The error for a lock on a drive without file locks, as some network drives are mounted."""


def lock(
    file: IO[Any],
    *,
    wait: bool,
    shared: bool = False,
    remedy: str = "use a folder on a drive with locks, such as a local disk",
) -> bool:
    """Lock an open file for this process; return False if another process holds the lock.

    Several processes can hold a `shared` lock, which excludes any other. The lock ends when the
    file is closed or the process ends in any way. Raises NoLocksError, which ends with the remedy,
    on a file system without locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise NoLocksError(
            f"{file.name} is on a drive without file locks ({error.strerror}), which keep other "
            f"processes from writing there at the same time; {remedy}"
        ) from None
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, which is created if missing, and hold it in this context."""
    with path.open("ab") as file:
        lock(file, wait=True)
        yield


def truncate_torn_line(path: Path) -> None:
    """Truncate a file after its last newline, and so remove a line that was not written completely.

    A kill or a full disk leaves such a line, and a line that is appended to it would be lost too.
    The caller must hold the lock for appending.
    """
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - BLOCK)
            file.seek(start)
            if newline := file.read(end - start).rfind(b"\n") + 1:
                end = start + newline
                break
            end = start
        if end < size:
            file.truncate(end)


class AppendOnlyFile:
    """An append-only file without buffering, so that written content outlives the process.

    Content that a full disk does not take is kept in `unwritten` until there is space again.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)
        self.unwritten = bytearray()

    def write(self, content: bytes) -> None:
        """Append bytes to the file, after any bytes that a full disk left unwritten."""
        self.unwritten += content
        try:
            while self.unwritten:
                del self.unwritten[: self.file.write(self.unwritten)]
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise

    def close(self) -> None:
        """Try once more to write bytes that a full disk left unwritten, and close the file."""
        try:
            self.write(b"")
        finally:
            self.file.close()
