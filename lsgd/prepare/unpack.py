"""The archives of ILSVRC 2012 as image folders, file by file and in parallel."""

import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.inputs.index import IMAGE_SUFFIXES
from lsgd.prepare.workers import in_parallel

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ArchiveMember(NamedTuple):
    """A file in an archive: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


def unpack_train(archive: Path, folder: Path, *, processes: int) -> tuple[int, int]:
    """Unpack the archive of archives n01440764.tar … to folder/n01440764/….

    A file that is there with the right size is not written again. Returns how many images were
    written and how many were there already. Raises Refused if an archive is cut short or has
    anything but plain files.
    """
    classes = members(archive, (".tar",))
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(archive, inner, folder / inner.name.removesuffix(".tar")) for inner in classes]
    return _total(_unpack_class, tasks, processes, "classes of train")


def unpack_val(
    archive: Path, folder: Path, class_of: Callable[[str], str], *, processes: int
) -> tuple[int, int]:
    """Unpack the flat archive of validation images to folder/<class>/….

    Files already there, the counts returned and the refusals are as in unpack_train.
    """
    images = [(image, folder / class_of(image.name)) for image in members(archive, IMAGE_SUFFIXES)]
    for target in {target for _, target in images}:
        target.mkdir(parents=True, exist_ok=True)
    # Few enough images for the bar to move, and enough that opening the archive costs nothing.
    tasks = [(archive, images[i : i + 250]) for i in range(0, len(images), 250)]
    return _total(_extract, tasks, processes, "val, in 250 images")


def check_val(archive: Path, class_of: Callable[[str], str]) -> None:
    """Raise Refused if the archive of validation images is not whole or has an unknown image."""
    for image in members(archive, IMAGE_SUFFIXES):
        class_of(image.name)


def members(
    archive: Path, suffixes: tuple[str, ...], part: ArchiveMember | None = None
) -> list[ArchiveMember]:
    """The files in an archive, or in the archive that is a member of it, unpacked nowhere."""
    where = f"{archive}:{part.name}" if part else str(archive)
    files = []
    try:
        with archive.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            if part:
                end = part.offset + part.size
            file.seek(part.offset if part else 0)
            # tarfile starts at the file's position, and counts offsets from the file's beginning.
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    # Behind an inner archive tarfile would read on in the outer one.
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError("unexpected end")
                    _check_plain(where, member, suffixes)
                    files.append(ArchiveMember(member.name, member.offset_data, member.size))
    except OSError as error:
        raise Refused(f"{where} cannot be read ({error.strerror}); give the whole file") from None
    except tarfile.TarError as error:
        raise Refused(
            f"{where} is cut short or no tar ({error}); compare it with the MD5 in data/imagenet, "
            "and fetch it again"
        ) from None
    if not files:
        raise Refused(f"{where} is empty; fetch it again")
    return files


def _check_plain(where: str, member: tarfile.TarInfo, suffixes: tuple[str, ...]) -> None:
    plain = member.isreg() and PLAIN.fullmatch(member.name)
    if not plain or not member.name.lower().endswith(suffixes):
        raise Refused(
            f"{where} has a member {member.name!r}, and only plain files {', '.join(suffixes)} "
            "were expected: it is not the archive of image-net.org; unpack it yourself, and give "
            "the folder"
        )


def _unpack_class(archive: Path, part: ArchiveMember, folder: Path) -> tuple[int, int]:
    images = members(archive, IMAGE_SUFFIXES, part)
    folder.mkdir(exist_ok=True)
    return _extract(archive, [(image, folder) for image in images])


def _extract(archive: Path, images: list[tuple[ArchiveMember, Path]]) -> tuple[int, int]:
    written = 0
    with archive.open("rb", buffering=0) as file:
        for (name, offset, size), folder in images:
            target = folder / name
            if target.is_file() and target.stat().st_size == size:
                continue
            content = os.pread(file.fileno(), size, offset)
            if len(content) != size:
                raise Refused(f"{archive} became shorter while it was read; give the whole file")
            with whole(target) as out:
                out.write(content)
            written += 1
    return written, len(images) - written


def _total(
    work: Callable[..., tuple[int, int]],
    tasks: Sequence[tuple[object, ...]],
    processes: int,
    what: str,
) -> tuple[int, int]:
    counts = list(in_parallel(work, tasks, processes=processes, what=what))
    return sum(new for new, _ in counts), sum(old for _, old in counts)
