"""Every image decoded wholly: what cannot be used goes to a skip list, what is odd is named."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from lsgd.errors import Refused
from lsgd.inputs.index import SPLITS, class_folders
from lsgd.prepare.files import whole
from lsgd.prepare.journal import Findings, Journal, look_at_folder
from lsgd.prepare.scan import unreachable
from lsgd.prepare.workers import in_parallel

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

MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""Of a JPEG's segment; within the coded pixels 0xff is followed by 0 or a restart marker."""

SKIP_LIST_HEADER = """\
# Images that cannot be decoded: lsgd leaves them out with data.skip_list={file}
# One path per line, relative to data.root. What is left out is part of the run's identity.
"""


class Finding(NamedTuple):
    """What is odd about an image, or makes it useless."""

    path: str
    kind: str
    detail: str


def check_folder(root: Path, folder: Path, *, processes: int) -> list[Finding]:
    """Decode all images of root/train and root/val; returns what is not as it should be.

    A journal in `folder` lets a run that was killed go on where it was.
    """
    journal = Journal(folder / "check.jsonl")
    names = [f"{split}/{name}" for split in SPLITS for name in class_folders(root / split)]
    tasks = [(root, name, journal.found.get(name)) for name in names]
    for findings in in_parallel(_look, tasks, processes=processes, what="checking"):
        journal.add(findings)
    found = [
        Finding(f"{name}/{image}", kind, detail)
        for name in names
        for image, (_, kinds) in journal.found[name].files.items()
        for kind, detail in kinds
    ]
    with whole(folder / "check.tsv") as file:
        file.write(b"path\tkind\tdetail\n")
        for each in found:
            file.write(os.fsencode("\t".join(each) + "\n"))
    journal.remove()
    return found


def look(path: Path) -> list[tuple[str, str]]:
    """The kinds of FATAL or ODD that an image is of, each with a detail; most are of none."""
    with warnings.catch_warnings():
        # Of PIL, about metadata.
        warnings.simplefilter("ignore")
        try:
            return _decode(path)
        except UnidentifiedImageError:
            return [_unidentified(path)]
        except OSError as error:
            if error.errno:
                raise unreachable(path, error) from None
            return [_broken(path, error)]
        except Exception as error:  # a broken file can make PIL raise nearly anything
            return [_broken(path, error)]


def write_skip_list(found: Sequence[Finding], file: Path) -> tuple[int, int]:
    """Add the fatal ones to a skip list; the lines that it has stay.

    Returns how many images it names, and how many of those were not found to be fatal.
    """
    lines = [
        (each.path, f"# {each.kind}: {each.detail}".replace("\n", " "))
        for each in found
        if each.kind in FATAL
    ]
    for path, _ in lines:
        if "#" in path or path != path.strip() or not path.isprintable():
            raise Refused(f"{path!r} cannot be named in a skip list; rename or remove that file")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    listed = {line.partition("#")[0].strip() for line in text.splitlines()} - {""}
    added = [f"{path}  {why}\n" for path, why in lines if path not in listed]
    if added:
        if not text:
            text = SKIP_LIST_HEADER.format(file=file)
        with whole(file) as out:
            text = text if text.endswith("\n") else f"{text}\n"
            out.write((text + "".join(added)).encode())
    fatal = {path for path, _ in lines}
    return len(listed | fatal), len(listed - fatal)


def table(found: Sequence[Finding]) -> str:
    """How many of each kind, and up to 5 examples."""
    counts = Counter(each.kind for each in found)
    lines = []
    for title, kinds in (("not usable", FATAL), ("odd but usable", ODD)):
        lines.append(f"{title}:")
        for kind, meaning in kinds.items():
            lines.append(f"  {kind:<13}{counts[kind]:>8,}  {meaning}")
            examples = [each for each in found if each.kind == kind][:5]
            lines += [f"{'':>25}{each.path} ({each.detail})" for each in examples]
    return "\n".join(lines)


def _look(root: Path, folder: str, earlier: Findings | None) -> Findings:
    return look_at_folder(root, folder, look, earlier)


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
