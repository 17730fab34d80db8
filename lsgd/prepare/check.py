"""The check that decodes every image: unusable ones go to a skip list, odd ones are reported."""

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.inputs.index import SPLITS, class_folders, image_files
from lsgd.prepare import MAX_PIXELS, listed
from lsgd.prepare.images import FATAL, ODD, image_problems
from lsgd.prepare.journal import FolderFindings, Journal, inspect_folder
from lsgd.prepare.process_pool import in_parallel
from lsgd.recipe.image_folder import read_skip_list

JOURNAL, TABLE, SKIP_LIST = "check.jsonl", "check.tsv", "skip.txt"
"""The names of the files that a check writes beside the index; a finished one has no journal."""
SKIP_LIST_HEADER = """\
# Images that cannot be decoded: lsgd skips them with data.skip_list={file}
# One path per line, relative to data.root. Skipped images are part of the run's identity.
"""


class ImageProblem(NamedTuple):
    """A problem of one image of a dataset, which makes the image odd or unusable."""

    path: str
    kind: str
    detail: str


def list_unusable(
    root: Path,
    folder: Path,
    *,
    processes: int,
    max_pixels: int = MAX_PIXELS,
    sets: Sequence[str] = (),
) -> Path | None:
    """Decode all images, print their problems, and return the skip list of `folder` if it has one.

    The list and a table of all problems are written to `folder`.
    """
    skip = folder / SKIP_LIST
    if gone := _drop_missing(root, skip):  # before hours of work, since the list may be unreadable
        print(f"{skip} named images that do not exist; removed: {listed(gone)}")
    limits = {"processes": processes, "max_pixels": max_pixels}
    oddities = check_folder(root, folder, sets=sets, **limits)
    print(f"{problem_table(oddities)}\nfull list: {folder / TABLE}", flush=True)
    skipped, usable = write_skip_list(oddities, skip)
    if skipped:
        print(f"{skip} names {skipped} images to skip")
    if usable:
        print(f"  {usable} of them were listed before and are usable: a line can be removed")
    return skip if skipped else None


def check_folder(
    root: Path,
    folder: Path,
    *,
    processes: int,
    max_pixels: int = MAX_PIXELS,
    sets: Sequence[str] = (),
) -> list[ImageProblem]:
    """Decode all images of root/train, root/val and `sets`, and write and return their problems.

    Images of more than `max_pixels` pixels are not decoded. A journal in `folder` lets a killed
    command resume.
    """
    journal = Journal(folder / JOURNAL, max_pixels)
    splits = (*SPLITS, *sets)
    names = [f"{split}/{name}" for split in splits for name in class_folders(root / split)]
    tasks = [(root, name, journal.findings.get(name), max_pixels) for name in names]
    for findings in in_parallel(_look, tasks, processes=processes, what="checking"):
        journal.add(findings)
    oddities = [
        ImageProblem(f"{name}/{image}", kind, detail)
        for name in names
        for image, (_, kinds) in journal.findings[name].files.items()
        for kind, detail in kinds
    ]
    with atomic_write(folder / TABLE) as file:
        file.write(b"path\tkind\tdetail\n")
        for oddity in oddities:
            cells = (re.sub(r"[\t\r\n]", " ", cell) for cell in oddity)
            file.write(os.fsencode("\t".join(cells) + "\n"))
    _check_listable(oddities)  # while the journal saves what was decoded
    journal.remove()
    return oddities


def _drop_missing(root: Path, file: Path) -> list[str]:
    """Remove the images that do not exist from a skip list, if there is one; return their paths.

    A run would reject a list that names them, as after a damaged file was removed.
    """
    listed_now = read_skip_list(file) if file.exists() else set[str]()
    gone = {path for path in listed_now if not (root / path).exists()}
    if gone:
        text = file.read_text(encoding="utf-8-sig")
        kept = [line for line in text.splitlines() if line.partition("#")[0].strip() not in gone]
        with atomic_write(file) as out:
            out.write("".join(f"{line}\n" for line in kept).encode())
    return sorted(gone)


def skipped_classes(root: Path, split: str, skipped: Collection[str]) -> list[str]:
    """Return the classes of a split of which a skip list has every image, sorted."""
    return [
        name
        for name in class_folders(root / split)
        if (files := image_files(root / split / name))
        and all(f"{split}/{name}/{file}" in skipped for file in files)
    ]


def skipped_class_faults(
    root: Path, skipped: Collection[str], *, allow_empty_classes: bool = False
) -> list[str]:
    """Return a sentence for each split of which a skip list has every image of some classes.

    With `allow_empty_classes` those of val are no fault while another class of val has an image.
    """
    faults = []
    for split in SPLITS:
        gone = skipped_classes(root, split, skipped)
        allowed = allow_empty_classes and split == "val"
        if allowed and gone and not usable_images(root, split, skipped):
            faults.append(f"no class has a usable image in {root / split}")
        elif gone and not allowed:
            faults.append(
                f"{len(gone):,} {'class has' if len(gone) == 1 else 'classes have'} no usable "
                f"image in {root / split} ({listed(gone)})"
                + ", which --allow-empty-classes of prepare folder allows"
                * (split == "val")
            )
    return faults


def usable_images(root: Path, split: str, skipped: Collection[str]) -> int:
    """Return the number of images of a split that are not in a skip list."""
    return sum(
        f"{split}/{name}/{file}" not in skipped
        for name in class_folders(root / split)
        for file in image_files(root / split / name)
    )


def write_skip_list(oddities: Sequence[ImageProblem], file: Path) -> tuple[int, int]:
    """Add unusable images to a skip list, the file of images to skip in training.

    Returns how many images the list names, and how many of those have no fatal problem. Raises
    UsageError if the path of an image cannot be written in a skip list.
    """
    lines = [
        (oddity.path, f"# {oddity.kind}: {oddity.detail}".replace("\n", " "))
        for oddity in oddities
        if oddity.kind in FATAL
    ]
    _check_listable(oddities)
    text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    listed = read_skip_list(file) if text else set[str]()
    added = [f"{path}  {why}\n" for path, why in lines if path not in listed]
    if added:
        if not text:
            text = SKIP_LIST_HEADER.format(file=file)
        with atomic_write(file) as out:
            text = text if text.endswith("\n") else f"{text}\n"
            out.write((text + "".join(added)).encode())
    fatal = {path for path, _ in lines}
    return len(listed | fatal), len(listed - fatal)


def _check_listable(oddities: Sequence[ImageProblem]) -> None:
    """Raise UsageError if the path of an unusable image cannot be written in a skip list."""
    for path, kind, _ in oddities:
        # A reader of the list takes what follows # for a comment, and strips blanks.
        is_plain = "#" not in path and path == path.strip() and path.isprintable()
        if kind in FATAL and not is_plain:
            raise UsageError(
                f"{path!r} cannot be named in a skip list; remove that file, or rename it or its "
                "folder, and rerun the same command"
            )


def problem_table(oddities: Sequence[ImageProblem]) -> str:
    """Return a text table: the number of images with each kind of problem, and examples."""
    counts = Counter(oddity.kind for oddity in oddities)
    lines = []
    for title, kinds in (("not usable", FATAL), ("odd but usable", ODD)):
        lines.append(f"{title}:")
        for kind, meaning in kinds.items():
            lines.append(f"  {kind:<13}{counts[kind]:>8,}  {meaning}")
            examples = [oddity for oddity in oddities if oddity.kind == kind][:5]
            lines += [f"{'':>25}{oddity.path} ({oddity.detail})" for oddity in examples]
    return "\n".join(lines)


def _look(
    root: Path, folder: str, earlier: FolderFindings | None, max_pixels: int
) -> FolderFindings:
    """Decode the images of one class folder to find problems, reusing earlier valid findings."""
    return inspect_folder(
        root, folder, partial(image_problems, max_pixels=max_pixels), earlier,
        is_valid=lambda _: True,  # the journal has only findings with the same limit
    )  # fmt: skip
