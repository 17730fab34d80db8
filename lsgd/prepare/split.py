"""The division of a folder of images into train and val, by the content of each image.

The images stay where they are: the divided folder has symbolic links to them. The content of an
image alone decides its side, so that images which are added later move no other, and equal images
of a class are never on both sides. The exception is a class that would have none on one side.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import UsageError
from lsgd.inputs.index import MAX_FILE_BYTES, SPLITS, class_folders, image_files, index_file
from lsgd.paths import is_leftover
from lsgd.prepare.check import JOURNAL, SKIP_LIST, TABLE
from lsgd.prepare.fetch import is_writable, locked_folder
from lsgd.prepare.process_pool import in_parallel
from lsgd.untrusted_files import read_bounded

SUFFIX = "-split"
"""The suffix of the divided folder's name, if the user gives no other folder."""
MARKER = ".lsgd-split"
"""The empty file that marks a folder whose links a division has made, and may replace."""
SPLIT_NAMES = (*SPLITS, "valid", "validation", "test")
"""The names of folders that may be parts of a dataset, each with classes, and not classes."""


class SplitFolder(NamedTuple):
    """A divided folder of images, with the number of images on each side."""

    folder: Path
    source: Path
    """The folder whose classes are divided."""
    train: int
    val: int
    copies: int
    """The number of images whose content another image has."""
    empty: list[str]
    """The folders without an image, which are not classes of the divided folder."""


def unsplit_classes(root: Path) -> Path | None:
    """Return the folder of a root that has classes to be divided: itself or train; None if none.

    It is train if there is no val, and the root if it has neither, each only with images in its
    classes. Classes of the root may be called train and val, if there are others that are not
    called as a part of a dataset.
    """
    train, val = root / "train", root / "val"
    if _count_classes(val):
        return None
    if not val.exists() and _count_classes(train):
        return train
    fewest = 2 if train.exists() or val.exists() else 1
    others = _count_classes(root) - sum(_has_images(root / name) for name in SPLIT_NAMES)
    return root if others and _count_classes(root) >= fewest else None


def parts_beside(train: Path) -> list[Path]:
    """Return the folders beside a train folder, such as valid, with classes to evaluate on."""
    beside = (train.with_name(name) for name in SPLIT_NAMES[2:])
    return [folder for folder in beside if _count_classes(folder)]


def check_not_flat(root: Path) -> None:
    """Raise UsageError if a root or a part of it, such as train, has images without classes."""
    parts = [root / name for name in SPLIT_NAMES if (root / name).is_dir()]
    for folder in parts or [root]:
        if _has_images(folder) and not _count_classes(folder):
            raise UsageError(
                f"{folder} has images that are in no class folder; put those of each class into "
                f"a folder of its own, {folder / 'CLASS'}"
            )


def _count_classes(folder: Path) -> int:
    """Return the number of a folder's class folders that have images; 0 if it does not exist."""
    names = class_folders(folder) if folder.is_dir() else []
    return sum(_has_images(folder / name) for name in names)


def _has_images(folder: Path) -> bool:
    return folder.is_dir() and bool(image_files(folder))


def split_folder(
    root: Path, out: Path | None, share: float, *, processes: int, sets: Sequence[str] = ()
) -> SplitFolder:
    """Divide the images of a folder into train and val, in a folder of links; return that folder.

    It is `out`, or ROOT-split beside the root. Links of an earlier division are replaced, and the
    evaluation sets named by `sets`, which a user has put beside them, stay as they are. Raises
    UsageError, having written nothing, if the root is divided already, a class has fewer than
    two different images, or the folder of links has anything else.
    """
    source = unsplit_classes(root)
    if source is None:
        check_not_flat(root)
        raise UsageError(
            f"--split divides ROOT/CLASS/ or ROOT/train/CLASS/ without a val, and {root} has no "
            "such images; leave out --split if it has train/CLASS/ and val/CLASS/"
        )
    target = out or Path(f"{root if root.name not in ('', '..') else root.resolve()}{SUFFIX}")
    if target.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"--out {target} is inside {source}; give a folder outside it")
    if source.resolve().is_relative_to(target.resolve()):
        raise UsageError(f"--out {target} contains {source}; give a folder outside it")
    if not is_writable(target):
        raise UsageError(f"{target} cannot be written; write --out FOLDER for the links")
    if target.exists():
        _check_target(target, sets)
    classes, what = class_folders(source), "contents of the images"
    tasks = [(source, name) for name in classes]
    digests = dict(in_parallel(_hash_images, tasks, processes=processes, what=what))
    links = _links(source, {name: digests[name] for name in classes if digests[name]}, share)
    with locked_folder(target):
        _check_target(target, sets)
        (target / MARKER).touch()
        _replace_links(target, links)
    contents = Counter(digest for images in digests.values() for digest in images.values())
    sizes = Counter(link.parts[0] for link in links)
    copies = contents.total() - len(contents)
    empty = [name for name in classes if not digests[name]]
    return SplitFolder(target, source, sizes["train"], sizes["val"], copies, empty)


def validation_digests(digests: Iterable[bytes], share: float) -> set[bytes]:
    """Return the SHA-256 digests, of those of a class's images, that are for validation.

    They are those below `share` of the largest, but at least one and not all. Needs two different
    digests.
    """
    ordered = sorted(set(digests))
    below = [each for each in ordered if int.from_bytes(each) < share * 2 ** (8 * len(each))]
    return set((below or ordered[:1])[: len(ordered) - 1])


def _links(
    source: Path, digests: Mapping[str, Mapping[str, bytes]], share: float
) -> dict[Path, Path]:
    """Return each image by the path of its link, such as val/cat/1.jpg."""
    links: dict[Path, Path] = {}
    for name, images in digests.items():
        if len(set(images.values())) < 2:
            raise UsageError(
                f"{source / name} has fewer than two different images, and a class needs one to "
                "train on and one to evaluate on; add images, or remove the folder"
            )
        in_val = validation_digests(images.values(), share)
        for file, digest in images.items():
            links[Path("val" if digest in in_val else "train", name, file)] = source / name / file
    return links


def _hash_images(source: Path, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a class folder's name and the SHA-256 of each of its images."""
    digests = {}
    for file in image_files(source / name):
        try:
            content = read_bounded(source / name / file, MAX_FILE_BYTES)
        except OSError as error:
            raise UsageError(
                f"{source / name / file} cannot be read ({error.strerror}); repair or remove it, "
                "and rerun the same command"
            ) from None
        digests[file] = hashlib.sha256(content).digest()
    return name, digests


def _check_target(target: Path, sets: Sequence[str]) -> None:
    """Raise UsageError if the folder of links has anything but a division and evaluation sets."""
    names = {*SPLITS, *sets}
    known = {*names, *(index_file(target, name).name for name in names)}
    known |= {f"{name}.scan.jsonl" for name in names} | {MARKER, JOURNAL, TABLE, SKIP_LIST}
    present = [target / name for name in os.listdir(target)]
    # Links without the marker may be a user's own.
    odd = [path for path in present if path.name not in known or not (target / MARKER).is_file()]
    odd += [path for path in _files_in_splits(target) if not path.is_symlink()]
    if odd := [path for path in sorted(odd) if not is_leftover(path.name)]:
        raise UsageError(
            f"{odd[0]} is not of an earlier --split; write --out FOLDER for a new or empty folder"
        )


def _files_in_splits(target: Path) -> Iterator[Path]:
    for split in SPLITS:
        for parent, _, files in os.walk(target / split):
            yield from (Path(parent, name) for name in files)


def _replace_links(target: Path, links: Mapping[Path, Path]) -> None:
    """Make the links of a divided folder, relative ones, and remove all others and empty folders.

    A link that is right already stays, so that its folder does not count as changed.
    """
    texts: dict[Path, str] = {}
    for folder in {link.parent for link in links}:
        (target / folder).mkdir(parents=True, exist_ok=True)
    for link, image in links.items():
        file = image.parent.resolve() / image.name
        texts[target / link] = os.path.relpath(file, (target / link).parent.resolve())
    for path in list(_files_in_splits(target)):
        if path.is_symlink() and texts.get(path) == os.readlink(path):
            del texts[path]
        elif path.is_symlink():
            path.unlink()
    for path, text in texts.items():
        path.symlink_to(text)
    for split in SPLITS:
        for name in class_folders(target / split):
            if not any((target / split / name).iterdir()):
                (target / split / name).rmdir()
