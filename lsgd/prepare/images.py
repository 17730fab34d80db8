"""What a single image file is: its size, and whether it is whole."""

import os
import re
import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from lsgd.errors import Refused

FATAL = {
    "empty": "no bytes at all",
    "truncated": "ends before the image does",
    "not an image": "PIL knows no such format",
    "broken": "PIL cannot decode it",
}
ODD = {
    "CMYK": "four inks, converted to RGB when read",
    "other format": "another format than its name says",
    "EXIF-rotated": "a camera's note to rotate it, which no loader here follows",
    "gray": "one channel, repeated",
    "tiny": "a side under 32 pixels",
    "16-bit": "more than 8 bits per channel, cut off when read",
}

END_OF_JPEG = b"\xff\xd9"

MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""The marker of a JPEG's segment; in the coded pixels 0xff is followed by 0 or a restart marker."""


def size(path: Path) -> tuple[int, int]:
    """Width and height of an image as stored; (0, 0) if it is no image, or no whole one.

    They are in the header. Only a file that does not end as a JPEG does is decoded, to see whether
    it is cut short.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            stored = image.size
            file.seek(-2, os.SEEK_END)
            ends = file.read(2) == END_OF_JPEG
    except OSError as error:
        if error.errno:
            raise _unreachable(path, error) from None
        return 0, 0
    except Exception:  # a broken header can make PIL raise nearly anything
        return 0, 0
    whole = ends or not any(kind in FATAL for kind, _ in look(path))
    return stored if whole else (0, 0)


def look(path: Path) -> list[tuple[str, str]]:
    """The oddities of an image, each a kind (a key of FATAL or ODD) and a detail; mostly none."""
    with warnings.catch_warnings():
        # PIL warns of damaged metadata, which training does not read.
        warnings.simplefilter("ignore")
        try:
            return _decode(path)
        except UnidentifiedImageError:
            return [_unidentified(path)]
        except OSError as error:
            if error.errno:
                raise _unreachable(path, error) from None
            return [_broken(path, error)]
        except Exception as error:  # a broken file can make PIL raise nearly anything
            return [_broken(path, error)]


def _decode(path: Path) -> list[tuple[str, str]]:
    with Image.open(path) as image:
        image.load()
        orientation = image.getexif().get(0x0112, 1)
        width, height = image.size
        by_name = Image.registered_extensions().get(path.suffix.lower())
        # MPO is a JPEG with more images behind it.
        actual = "JPEG" if image.format == "MPO" else image.format
        content = path.read_bytes() if actual == "JPEG" else b""
        if content and not _has_end(content):
            return [("truncated", f"{len(content)} bytes, without an end-of-image marker")]
        kinds = {
            "CMYK": (image.mode == "CMYK", image.mode),
            "other format": (by_name != actual, f"{actual}, {image.mode}"),
            "EXIF-rotated": (orientation in range(2, 9), f"orientation {orientation}"),
            "gray": (image.mode in ("1", "L", "LA"), image.mode),
            "tiny": (min(width, height) < 32, f"{width} x {height}"),
            "16-bit": (image.mode[0] in "IF", image.mode),
        }
    return [(kind, detail) for kind, (is_so, detail) in kinds.items() if is_so]


def _has_end(jpeg: bytes) -> bool:
    """Whether the image itself has its EOI marker: PIL misses one in twenty that are cut off.

    A thumbnail in the metadata has one too, so the segments are stepped over.
    """
    position = 2
    while marker := MARKER.search(jpeg, position):
        if marker[1] == b"\xd9":
            return True
        position = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2])
    return False


def _broken(path: Path, error: Exception) -> tuple[str, str]:
    kind = "truncated" if "runcated" in str(error) else "broken"
    return kind, f"{path.stat().st_size} bytes, {error}"


def _unidentified(path: Path) -> tuple[str, str]:
    content = path.read_bytes()
    if not content:
        return "empty", "0 bytes"
    if content.startswith((b"\xff\xd8", b"\x89PNG")):
        return "truncated", f"{len(content)} bytes, within its header"
    return "not an image", f"{len(content)} bytes, beginning with {content[:8]!r}"


def _unreachable(path: Path, error: OSError) -> Refused:
    # The disk, and not the image, is what is wrong.
    return Refused(f"{path} cannot be read ({error.strerror}); the same command goes on from there")
