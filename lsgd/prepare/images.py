"""The inspection of one image file: its size, and problems such as truncation."""

import io
import os
import re
import warnings
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lsgd.errors import UsageError
from lsgd.inputs import is_dali_installed
from lsgd.inputs.decoding import ORIENTATION, decoding_mismatch, unlimited_image_size
from lsgd.inputs.index import MAX_FILE_BYTES
from lsgd.prepare import MAX_PIXELS, dali_check, png

FATAL = {
    "empty": "no bytes at all",
    "truncated": "ends before the image does",
    "not an image": "not in a format that PIL can read",
    "broken": "PIL or DALI cannot decode it",
    "too large": "more pixels than --max-pixels allows, or more bytes than loaders read",
    "unshared": "read by one loader only, or differently by each; save it as a plain JPEG or PNG",
}
ODD = {
    "CMYK": "four inks, converted to RGB when read",
    "other format": "a format other than its name's",
    "EXIF-rotated": "a camera's orientation tag, which no loader here follows",
    "gray": "one channel, repeated unless data.channels=1",
    "tiny": "a side under 32 pixels",
    "not by DALI": "neither JPEG nor PNG; whether DALI decodes it is unknown without DALI",
}

PLAIN = ("JPEG", "PNG")
"""The formats whose header shows whether every loader reads them equally.

For other formats, such as TIFF with its many codecs, the loaders themselves are tried.
"""

JPEGS = ("JPEG", "MPO")
"""The formats of JPEG files; MPO is a JPEG followed by more images."""

END_OF_JPEG = b"\xff\xd9"

MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""The marker of a JPEG segment; in coded pixels 0xff is followed by 0 or a restart marker."""


class ShardMember:
    """An image's bytes with the ending of its name, where an image file is expected."""

    def __init__(self, name: str, content: bytes) -> None:
        self.suffix, self.content = os.path.splitext(name)[1], content

    def open(self, mode: Literal["rb"], /) -> BinaryIO:
        """Open the image for reading."""
        return io.BytesIO(self.content)

    def read_bytes(self) -> bytes:
        """Return the whole content of the image."""
        return self.content


ImageSource: TypeAlias = Path | ShardMember
"""The bytes of an image and its name."""


@unlimited_image_size()
def usable_size(path: ImageSource, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return an image's stored width and height, or (0, 0) if not every loader can use it.

    Images of more than `max_pixels` pixels or MAX_FILE_BYTES have (0, 0) too. The size is read from
    the header. Only a file without a JPEG's end is decoded, to detect truncation.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            stored = image.size
            if stored[0] * stored[1] > max_pixels:
                return 0, 0
            if file.seek(0, os.SEEK_END) > MAX_FILE_BYTES:
                return 0, 0
            readable = image.format in JPEGS and decoding_mismatch(image) is None
            file.seek(-2, os.SEEK_END)
            ends = readable and file.read(2) == END_OF_JPEG
    except OSError as error:
        if error.errno:
            raise _unreachable(path, error) from None
        return 0, 0
    except Exception:  # a broken header can make PIL raise nearly anything
        return 0, 0
    whole = ends or not any(kind in FATAL for kind, _ in image_problems(path, max_pixels))
    return stored if whole else (0, 0)


@unlimited_image_size()
def image_problems(path: ImageSource, max_pixels: int = MAX_PIXELS) -> list[tuple[str, str]]:
    """Decode an image; return its problems, each a key of FATAL or ODD with a detail.

    An image of more than `max_pixels` pixels or MAX_FILE_BYTES is not decoded.
    """
    with warnings.catch_warnings():
        # PIL warns of damaged metadata, which training does not read.
        warnings.simplefilter("ignore")
        try:
            return _decode(path, max_pixels)
        except UnidentifiedImageError:
            return [_unidentified(path)]
        except OSError as error:
            if error.errno:
                raise _unreachable(path, error) from None
            return [_broken(path, error)]
        except Exception as error:  # a broken file can make PIL raise nearly anything
            return [_broken(path, error)]


def _decode(path: ImageSource, max_pixels: int) -> list[tuple[str, str]]:
    """Decode an image, and return its problems; raise PIL's error if PIL cannot decode it."""
    with path.open("rb") as file, Image.open(file) as image:
        if image.width * image.height > max_pixels:
            size = f"{image.width} x {image.height} pixels"
            return [("too large", f"{size}, more than --max-pixels {max_pixels}")]
        position = file.tell()
        if (length := file.seek(0, os.SEEK_END)) > MAX_FILE_BYTES:
            return [("too large", f"{length} bytes, more than the {MAX_FILE_BYTES} of a loader")]
        file.seek(position)
        if reason := decoding_mismatch(image):
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
        asked = image.format not in PLAIN
        if asked and is_dali_installed() and (reason := dali_check.dali_difference(content, image)):
            return [("unshared", reason)]
        kinds = {
            "CMYK": (image.mode == "CMYK", image.mode),
            "other format": (by_name != actual, f"{actual}, {image.mode}"),
            "EXIF-rotated": (orientation in range(2, 9), f"orientation {orientation}"),
            "gray": (image.mode in ("1", "L", "LA", "I", "I;16", "I;16B"), image.mode),
            "tiny": (min(width, height) < 32, f"{width} x {height}"),
            "not by DALI": (asked and not is_dali_installed(), str(image.format)),
        }
    return [(kind, detail) for kind, (is_so, detail) in kinds.items() if is_so]


def _has_end(jpeg: bytes) -> bool:
    """Return whether the main image of a JPEG file has its end-of-image marker.

    PIL misses one in twenty truncated files. A thumbnail in the metadata has an EOI marker too, so
    the segments are skipped one by one.
    """
    position = 2
    while marker := MARKER.search(jpeg, position):
        if marker[1] == b"\xd9":
            return True
        position = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2])
    return False


def _end_of_bmp(image: ImageFile) -> int:
    """Return the offset at which the pixels of a BMP file should end, or 0 if it is compressed.

    PIL accepts a file that lacks the last row's padding.
    """
    codec, _, offset, layout = image.tile[0]
    if codec != "raw" or not isinstance(layout, tuple):
        return 0  # compressed rows differ in length
    stride: int = layout[1]
    return offset + stride * image.height


def _broken(path: ImageSource, error: Exception) -> tuple[str, str]:
    """Return kind and detail of the problem with an image that raised this error in decoding."""
    kind = "truncated" if "runcated" in str(error) else "broken"
    return kind, f"{len(path.read_bytes())} bytes, {error}"


def _unidentified(path: ImageSource) -> tuple[str, str]:
    """Return kind and detail of the problem with a file whose format PIL does not recognize."""
    content = path.read_bytes()
    if not content:
        return "empty", "0 bytes"
    if content.startswith((b"\xff\xd8", b"\x89PNG")):
        return "truncated", f"{len(content)} bytes, within its header"
    return "not an image", f"{len(content)} bytes, beginning with {content[:8]!r}"


def _unreachable(path: ImageSource, error: OSError) -> UsageError:
    """Return the UsageError for an image file that the disk cannot deliver."""
    # The disk is at fault, not the image.
    return UsageError(
        f"{path} cannot be read ({error.strerror}); fix that and rerun the same command to resume"
    )
