"""The unpacking of ILSVRC 2012's archives into image folders, in parallel."""

import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.inputs.index import IMAGE_SUFFIXES
from lsgd.prepare.process_pool import in_parallel
from lsgd.prepare.whole_tar import WholeTar

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ArchiveMember(NamedTuple):
    """A file in a tar archive: its name, and the offset and size of its bytes."""

    name: str
    offset: int
    size: int


def unpack_train(archive: Path, folder: Path, *, processes: int) -> tuple[int, int]:
    """Unpack ImageNet's training archive of inner archives to a folder for each class.

    A file that exists with the right size is not written again. Returns how many images were
    written and how many existed already. Raises UsageError if an archive is truncated or has
    anything but plain files.
    """
    classes = list_members(archive, (".tar",))
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(archive, inner, folder / inner.name.removesuffix(".tar")) for inner in classes]
    return _total(_unpack_class, tasks, processes, "classes of train")


def unpack_val(
    archive: Path, folder: Path, class_of: Callable[[str], str], *, processes: int
) -> tuple[int, int]:
    """Unpack ImageNet's flat archive of validation images to a folder for each class.

    Existing files, the returned counts and the errors are as in unpack_train.
    """
    images = [
        (image, folder / class_of(image.name)) for image in list_members(archive, IMAGE_SUFFIXES)
    ]
    for target in {target for _, target in images}:
        target.mkdir(parents=True, exist_ok=True)
    # 250 images keep the progress bar moving, and make the cost of opening the archive negligible.
    tasks = [(archive, images[i : i + 250]) for i in range(0, len(images), 250)]
    return _total(_extract, tasks, processes, "val, in 250 images")


def check_val(archive: Path, class_of: Callable[[str], str]) -> None:
    """Raise UsageError if the validation archive is truncated or an image has no known class."""
    for image in list_members(archive, IMAGE_SUFFIXES):
        class_of(image.name)


def list_members(
    archive: Path, suffixes: tuple[str, ...], part: ArchiveMember | None = None
) -> list[ArchiveMember]:
    """List the files in a tar archive, or in its inner archive `part`, without unpacking."""
    where = f"{archive}:{part.name}" if part else str(archive)
    files = []
    try:
        with archive.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            if part:
                end = part.offset + part.size
            file.seek(part.offset if part else 0)
            # tarfile starts at the file's position, and counts offsets from the file's beginning.
            with WholeTar(fileobj=file, end=end) as tar:
                for member in tar:
                    # tarfile would read beyond the end of an inner archive.
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError("unexpected end")
                    _check_plain(where, member, suffixes)
                    files.append(ArchiveMember(member.name, member.offset_data, member.size))
    except OSError as error:
        raise UsageError(
            f"{where} cannot be read ({error.strerror}); give the whole file"
        ) from None
    except tarfile.TarError as error:
        raise UsageError(
            f"{where} is cut short or not a tar ({error}); compare it with the MD5 in "
            "data/imagenet, and fetch it again"
        ) from None
    if not files:
        raise UsageError(f"{where} is empty; fetch it again")
    return files


def _check_plain(where: str, member: tarfile.TarInfo, suffixes: tuple[str, ...]) -> None:
    """Raise UsageError unless an archive member is a plain file with one of these suffixes."""
    plain = member.isreg() and PLAIN.fullmatch(member.name)
    if not plain or not member.name.lower().endswith(suffixes):
        raise UsageError(
            f"{where} has a member {member.name!r}, but only plain files {', '.join(suffixes)} "
            "are expected: it is not the archive of image-net.org; unpack it yourself, and give "
            "the folder"
        )


def _unpack_class(archive: Path, part: ArchiveMember, folder: Path) -> tuple[int, int]:
    """Unpack one class's inner archive; return how many images were written and existed."""
    images = list_members(archive, IMAGE_SUFFIXES, part)
    folder.mkdir(exist_ok=True)
    return _extract(archive, [(image, folder) for image in images])


def _extract(archive: Path, images: list[tuple[ArchiveMember, Path]]) -> tuple[int, int]:
    """Extract images by offset from a tar file; return how many were written and existed."""
    written = 0
    with archive.open("rb", buffering=0) as file:
        for (name, offset, size), folder in images:
            target = folder / name
            if target.is_file() and target.stat().st_size == size:
                continue
            content = os.pread(file.fileno(), size, offset)
            if len(content) != size:
                raise UsageError(f"{archive} became shorter while it was read; give the whole file")
            with atomic_write(target, sync=False) as out:
                out.write(content)
            written += 1
    return written, len(images) - written


def _total(
    work: Callable[..., tuple[int, int]],
    tasks: Sequence[tuple[object, ...]],
    processes: int,
    what: str,
) -> tuple[int, int]:
    """Run `work` on all tasks in parallel, and return the sums of both counts that it returns."""
    counts = list(in_parallel(work, tasks, processes=processes, what=what))
    return sum(new for new, _ in counts), sum(old for _, old in counts)
