"""Safe reading of untrusted files: no code in them runs, and size and time are bounded.

Run folders, configurations and lists of points are passed around. Only regular files of a bounded
size are read; a pipe, a device or a zip bomb is refused before it blocks or is unpacked.
"""

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 2**26
"""The maximum size in bytes of a file that is read whole; lsgd writes no file near it."""

MAX_PIXELS = 2**29 // 3
"""The default for the most pixels of an image, 512 MiB in RGB.

Above it PIL refuses an image, and DALI's JPEG decoder falls back to a slower one.
"""


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading; raises OSError for others, such as a pipe or a device.

    Without `follow` a symbolic link is refused too, since it may lead out of the folder.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        # Without O_NONBLOCK opening a pipe blocks until a writer opens it.
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:  # a server holds a lease of the file; a blocking open ends it
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb", buffering)


def read_bounded(path: Path, most: int = MAX_BYTES, *, follow: bool = True) -> bytes:
    """Read a regular file whole; raises OSError if it is not regular or above `most` bytes."""
    with open_regular(path, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse a JSON text; raises ValueError if it is invalid or nested too deeply for Python."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_unzipped_size(archive: bytes, most: int) -> None:
    """Raise ValueError if a zip archive unpacks to more than `most` bytes, or cannot be listed."""
    import zipfile  # with all its decompressors, which `lsgd --help` would wait for

    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            size = sum(member.file_size for member in members.infolist())
    except Exception as error:  # of any type, such as NotImplementedError for a later version
        raise ValueError(f"it is not a complete zip archive ({error})") from None
    if size > most:
        raise ValueError(f"it has more than {most} bytes unpacked")
