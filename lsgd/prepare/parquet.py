"""The conversion of Hugging Face's copy of ILSVRC 2012 (Parquet or tar.gz) to image folders."""

import gzip
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.installation import install_command, is_installed
from lsgd.prepare.journal import FolderFindings, Journal
from lsgd.prepare.process_pool import in_parallel
from lsgd.prepare.validation import imagenet_classes
from lsgd.prepare.whole_tar import WholeTar

EXPECTED = (
    "train-00000-of-00294.parquet and validation-00000-of-00014.parquet, as Hugging Face has "
    "ILSVRC 2012, or its older train_images_0.tar.gz and val_images.tar.gz"
)
FILE = re.compile(
    r"(?P<split>train|validation|val)"
    r"(-(?P<number>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]{16})?\.parquet|_images(_\d)?\.tar\.gz)"
)
IMAGE = re.compile(
    r"(.*/)?(?P<name>(?P<of_train>n\d{8})_\d+|ILSVRC2012_val_\d{8})(_(?P<behind>n\d{8}))?\.JPEG"
)
"""The path of an image in the copy, with its class after its published name."""

ROWS = 16
"""The number of rows of a Parquet file that are in memory at once."""


class CopyFile(NamedTuple):
    """A Parquet or tar.gz file of Hugging Face's copy of ImageNet."""

    path: Path
    split: str
    """The split of its images, train or val."""
    number: int
    total: int
    """The number of files of this split in the copy; 0 if the file's name does not say."""


CopyImage = tuple[str, Any]
"""The path of an image in the folder of its split, and the bytes of its file or a buffer of them.

The path is such as n01440764/n01440764_10026.JPEG.
"""


def copy_files(folder: Path) -> list[CopyFile]:
    """List the files of ImageNet's Hugging Face copy in a folder, without the test split.

    Raises UsageError if there is none, if a split has files of two copies, or if pyarrow is needed
    and not installed.
    """
    paths = [path for place in (folder, folder / "data") for path in sorted(place.glob("*"))]
    files = [
        CopyFile(
            path,
            "train" if match["split"] == "train" else "val",
            int(match["number"] or 0),
            int(match["total"] or 0),
        )
        for path in paths
        if (match := FILE.fullmatch(path.name))
    ]
    if not files:
        raise UsageError(
            f"--parquet {folder} has no file of the copy; give a folder with {EXPECTED}"
        )
    first: dict[str, CopyFile] = {}
    for each in files:
        one = first.setdefault(each.split, each)
        if (one.total, one.path.parent) != (each.total, each.path.parent):
            raise UsageError(
                f"--parquet {folder} has two copies of {each.split}, with {one.path.name} and "
                f"{each.path.name}; move one of them away"
            )
    if any(each.total for each in files) and not is_installed("pyarrow"):
        raise UsageError(
            f"--parquet needs pyarrow, which is not installed; run {install_command('imagenet')}"
        )
    return files


def missing_files(files: list[CopyFile]) -> list[str]:
    """Return a sentence for each split of ImageNet's copy that lacks files, by their names."""
    lines = []
    for split, total in {(each.split, each.total) for each in files}:
        missing = set(range(total)) - {each.number for each in files if each.split == split}
        if missing:
            lines.append(
                f"{len(missing)} of {total} files of {split} are missing, the first of them "
                f"{min(missing):05d}-of-{total:05d}"
            )
    return sorted(lines)


def unpack_copy(
    files: list[CopyFile], root: Path, journal: Journal, *, processes: int
) -> dict[str, tuple[int, int]]:
    """Unpack Hugging Face's copy of ImageNet to root/train/<wnid>/ and root/val/<wnid>/.

    An image that exists with the right size is not written again, and a file whose images are all
    in the journal and in their folders is not read again. Returns by split how many images were
    written and how many existed already. Raises UsageError if a file is truncated or has anything
    but images of ILSVRC 2012.
    """
    tasks = [(each.path, each.split, root, journal.findings.get(str(each.path))) for each in files]
    counts: dict[str, tuple[int, int]] = {}
    for split, written, findings in in_parallel(
        _unpack_file, tasks, processes=processes, what="files"
    ):
        journal.add(findings)
        new, old = counts.get(split, (0, 0))
        counts[split] = new + written, old + len(findings.files) - written
    return counts


def _unpack_file(
    path: Path, split: str, root: Path, earlier: FolderFindings | None
) -> tuple[str, int, FolderFindings]:
    """Unpack a file of ImageNet's copy, unless it is unchanged and its images are in place.

    Returns its split, the number of images written, and the findings for the journal.
    """
    status = path.stat()
    # ctime too: a moved file keeps its mtime.
    changed = max(status.st_mtime, status.st_ctime)
    if earlier and changed < earlier.begun and _are_there(root, earlier):
        return split, 0, earlier
    begun, written = time.time(), 0
    images: dict[str, tuple[int, Any]] = {}
    made: set[Path] = set()
    read = _parquet_images if path.suffix == ".parquet" else _tar_images
    for place, content in read(path, split):
        target, size = root / split / place, len(content)
        images[f"{split}/{place}"] = size, None
        if target.is_file() and target.stat().st_size == size:
            continue
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.add(target.parent)
        with atomic_write(target, sync=False) as out:
            out.write(content)
        written += 1
    return split, written, FolderFindings(str(path), begun, images)


def _are_there(root: Path, findings: FolderFindings) -> bool:
    """Return whether all images of these findings are unpacked with the right size."""
    sizes = {root / name: size for name, (size, _) in findings.files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def _parquet_images(file: Path, split: str) -> Iterator[CopyImage]:
    """Yield the images of a Parquet file of ImageNet's copy, with their destinations."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    row = 0
    try:
        # By default pyarrow keeps all that it has read of a file in memory.
        with ParquetFile(file, pre_buffer=False, buffer_size=2**20) as opened:
            _check_columns(file, opened.schema_arrow)
            for rows in opened.iter_batches(ROWS, columns=["image", "label"], use_threads=False):
                images, labels = rows.columns
                contents, paths = (images.flatten()[i] for i in _parts(images.type))
                for content, path, label in zip(contents, paths, labels, strict=True):
                    place = _place(file, row, split, path.as_py(), label.as_py())
                    buffer = content.as_buffer()
                    if buffer is None:
                        raise _foreign(file, f"row {row} has a path and no image")
                    yield place, buffer
                    row += 1
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise _cut_short(file, error) from None


def _parts(image: Any) -> list[int]:
    """Return the indices of the fields `bytes` and `path` in a Parquet file's image column."""
    return [image.get_field_index(name) for name in ("bytes", "path")]


def _check_columns(file: Path, schema: Any) -> None:
    """Raise UsageError unless a Parquet file has the columns of ImageNet's copy."""
    from pyarrow import types

    columns = {each.name: each.type for each in schema}
    image, label = columns.get("image"), columns.get("label")
    if not (image and label and types.is_struct(image) and types.is_integer(label)):
        raise _foreign(file, f"its columns are {', '.join(columns)} and not image and label")
    if min(_parts(image)) < 0:
        raise _foreign(file, f"its image is {image} and not bytes and path")


def _tar_images(file: Path, split: str) -> Iterator[CopyImage]:
    """Yield the images of a tar.gz file of ImageNet's copy, with their destinations."""
    try:
        # Unlike tarfile's own mode r|gz, gzip checks that its stream is whole.
        with gzip.open(file) as plain, WholeTar.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                opened = tar.extractfile(member) if member.isreg() else None
                if opened is None:
                    raise _foreign(file, f"its member {member.name!r} is not a plain file")
                place = _place(file, member.name, split, member.name)
                yield place, opened.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise _cut_short(file, error) from None


def _place(
    file: Path, row: int | str, split: str, path: str | None, label: int | None = None
) -> str:
    """Return the path below a split for an image, such as n01440764/n01440764_10026.JPEG.

    Its class is in its own path, or is its label, which counts the sorted classes from 0. Raises
    UsageError if the two disagree or the class is none of ImageNet's.
    """
    wnids = _wnids()
    if label is not None and not 0 <= label < len(wnids):
        raise _foreign(file, f"row {row} has label {label} and not one of 0 to {len(wnids) - 1}")
    by_label = None if label is None else wnids[label]
    match = IMAGE.fullmatch(path or "")
    by_path = match and (match["behind"] or match["of_train"])
    if by_label and by_path and by_label != by_path:
        raise _foreign(file, f"row {row} is {path} and has label {label}, which is {by_label}")
    wnid = by_path or by_label
    if wnid not in imagenet_classes():
        raise _foreign(file, f"{path!r} does not name one of the 1000 classes")
    if match and (split == "train") == bool(match["of_train"]):
        return f"{wnid}/{match['name']}.JPEG"
    if label is None:
        raise _foreign(file, f"{path!r} is not an image of {split}")
    return f"{wnid}/{file.stem}_{row:06}.JPEG"


@cache
def _wnids() -> list[str]:
    """Return the WordNet ids of ImageNet's 1000 classes in the order of their labels."""
    return list(imagenet_classes())


def _cut_short(file: Path, error: Exception) -> UsageError:
    """Return the UsageError for a truncated or damaged file of ImageNet's copy."""
    return UsageError(f"{file} is cut short or damaged ({error}); fetch it again")


def _foreign(file: Path, why: str) -> UsageError:
    """Return the UsageError for a file whose content is not ILSVRC 2012."""
    return UsageError(f"{file} is not of ILSVRC 2012: {why}; --parquet takes {EXPECTED}")
