"""Safe reading of untrusted files: no code in them runs, and size and time are bounded.

Run folders, configurations and lists of points are passed around. Only regular files of a bounded
size are read; a pipe, a device or a zip bomb is refused before it blocks or is unpacked.
"""

import errno
import io
import json
import os
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Union, get_args, get_origin, get_type_hints

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
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            size = sum(member.file_size for member in members.infolist())
    except Exception as error:  # of any type, such as NotImplementedError for a later version
        raise ValueError(f"it is not a complete zip archive ({error})") from None
    if size > most:
        raise ValueError(f"it has more than {most} bytes unpacked")


def convert_json(kind: Any, value: Any, *, at: str = "it") -> Any:
    """Convert a value parsed from JSON to a type: a dataclass, a container or a plain type.

    Raises ValueError, with the path of the value, for a value of another type and for a missing or
    unknown key of a dataclass. An integer is accepted for a float and a string for a datetime. An
    instance of the requested dataclass is returned unchanged.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind)):
        return value
    if origin in (Union, UnionType):
        for each in inner:
            try:
                return convert_json(each, value, at=at)
            except ValueError:
                continue
        raise ValueError(f"{at} is {value!r:.80}, not {kind}")
    if is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        names = {entry.name: entry for entry in fields(kind)}
        needed = {name for name, entry in names.items() if _is_needed(entry)}
        if lacking := sorted(needed - value.keys()):
            raise ValueError(f"{at} has no {lacking[0]}")
        if unknown := sorted(map(str, value.keys() - names)):
            raise ValueError(f"{at} has {unknown[0]:.80}, which is unknown")
        made: Any = kind
        return made(**{k: convert_json(hints[k], v, at=f"{at}.{k}") for k, v in value.items()})
    if origin is list and isinstance(value, list):
        return [convert_json(inner[0], entry, at=at) for entry in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(convert_json(of, entry, at=at) for of, entry in zip(inner, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, dict):
        key, of = inner  # keys in JSON are strings
        return {
            (int(k) if key is int else k): convert_json(of, v, at=f"{at}.{k}")
            for k, v in value.items()
        }
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if type(value) is not (NoneType if kind is None else kind):
        raise ValueError(f"{at} is {value!r:.80}, not {getattr(kind, '__name__', kind)}")
    return value


def _is_needed(entry: "Field[Any]") -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING
