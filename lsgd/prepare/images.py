"""What a single image file is: its size, and whether it is whole."""

import os
import re
import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lsgd.errors import Refused
from lsgd.inputs.decoding import ORIENTATION, unshared
from lsgd.prepare import png

FATAL = {
    "empty": "no bytes at all",
    "truncated": "ends before the image does",
    "not an image": "PIL knows no such format",
    "broken": "PIL or DALI cannot decode it",
    "unshared": "read by one loader only, or otherwise by each; save it as a plain JPEG or PNG",
}
ODD = {
    "CMYK": "four inks, converted to RGB when read",
    "other format": "another format than its name says",
    "EXIF-rotated": "a camera's note to rotate it, which no loader here follows",
    "gray": "one channel, repeated",
    "tiny": "a side under 32 pixels",
}

JPEGS = ("JPEG", "MPO")
"""MPO is a JPEG with more images behind it."""

END_OF_JPEG = b"\xff\xd9"

MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""The marker of a JPEG's segment; in the coded pixels 0xff is followed by 0 or a restart marker."""


def size(path: Path) -> tuple[int, int]:
    """Width and height of an image as stored; (0, 0) if no loader, or not every one, can use it.

    They are in the header. Only a file that does not end as a JPEG does is decoded, to see whether
    it is cut short.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            stored = image.size
            readable = image.format in JPEGS and unshared(image) is None
            file.seek(-2, os.SEEK_END)
            ends = readable and file.read(2) == END_OF_JPEG
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
        if reason := unshared(image):
            return [("unshared", reason)]
        end_of_bmp = _end_of_bmp(image) if image.format == "BMP" else 0
        image.load()
        orientation = image.getexif().get(ORIENTATION, 1)
        width, height = image.size
        by_name = Image.registered_extensions().get(path.suffix.lower())
        actual = "JPEG" if image.format in JPEGS else image.format
        content = path.read_bytes()
        if actual == "JPEG" and not _has_end(content):
            return [("truncated", f"{len(content)} bytes, without an end-of-image marker")]
        if len(content) < end_of_bmp:
            return [("truncated", f"{len(content)} of {end_of_bmp} bytes")]
        if actual == "PNG" and (fault := png.fault(content)):
            return [fault]
        kinds = {
            "CMYK": (image.mode == "CMYK", image.mode),
            "other format": (by_name != actual, f"{actual}, {image.mode}"),
            "EXIF-rotated": (orientation in range(2, 9), f"orientation {orientation}"),
            "gray": (image.mode in ("1", "L", "LA"), image.mode),
            "tiny": (min(width, height) < 32, f"{width} x {height}"),
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


def _end_of_bmp(image: ImageFile) -> int:
    """Where the pixels of an opened BMP end; PIL does without the last row's padding."""
    codec, _, offset, layout = image.tile[0]
    if codec != "raw" or not isinstance(layout, tuple):
        return 0  # its rows are compressed, and not of one length
    stride: int = layout[1]
    return offset + stride * image.height


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
