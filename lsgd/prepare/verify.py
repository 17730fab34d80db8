"""Whether a folder is what it says: the classes and totals of ILSVRC 2012, or a subset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import Refused
from lsgd.inputs.index import SPLITS, class_folders, image_files
from lsgd.prepare.validation import classes


class Verified(NamedTuple):
    """The lines to print about a folder, and the words that a run on it needs."""

    lines: list[str]
    words: list[str]


def verify(root: Path, train_total: int, val_total: int) -> Verified:
    """Compare an image folder with all of ImageNet.

    A subset is fine. Raises Refused if the folder cannot be trained from, or if its labels would be
    other ones than ImageNet's.
    """
    counts = {split: _images(root, split) for split in SPLITS}
    train, val = counts["train"], counts["val"]
    if odd := sorted(train.keys() ^ val.keys()):
        raise Refused(
            f"train and val of {root} differ in {len(odd)} classes ({_some(odd)}); classes are "
            "numbered by their place among the folders, so give both the same folders"
        )
    for split, folders in counts.items():
        if empty := [name for name, number in folders.items() if number == 0]:
            raise Refused(
                f"{len(empty)} classes of {root / split} have no image in the folder itself "
                f"({_some(empty)}); add their images, or remove the folder from train and val"
            )
    names, lines = list(train), []
    totals = sum(train.values()), sum(val.values())
    unknown = [name for name in names if name not in classes()]
    missing = [name for name in classes() if name not in train]
    if unknown:
        numeric = all(name.isdecimal() for name in unknown)
        line = f"{len(unknown)} class folders are not of ILSVRC 2012 ({_some(unknown)})"
        if numeric:
            line += "; numbers sort as text, 0, 1, 10, 100, …, so class 2 is not the folder 2"
        if len(names) >= len(classes()):
            raise Refused(f"{line}; rename or remove them, so that {root} has the 1000 wnids")
        lines.append(f"warning: {line}")
    if missing:
        named = [f"{name} {classes()[name]}" for name in missing]
        lines.append(f"warning: {len(missing)} of the 1000 classes are missing ({_some(named)})")
    elif uneven := [name for name, number in val.items() if number != val_total // len(classes())]:
        lines.append(f"warning: {len(uneven)} classes have not 50 in val ({_some(uneven)})")
    wanted = (
        ("train_examples", totals[0], train_total),
        ("val_examples", totals[1], val_total),
        ("classes", len(names), len(classes())),
    )
    words = [f"data.{name}={number}" for name, number, expected in wanted if number != expected]
    summary = f"{len(names):,} classes, {totals[0]:,} images in train and {totals[1]:,} in val"
    if words:
        lines.append(
            f"warning: {summary}, and all of ImageNet is {len(classes())}, {train_total:,} and "
            f"{val_total:,}; if that is meant, give lsgd {' '.join(words)}"
        )
    else:
        lines.append(f"verified: {summary}, as ILSVRC 2012 has them")
    return Verified(lines, words)


def _images(root: Path, split: str) -> Mapping[str, int]:
    """The number of images in each class folder of a split."""
    folder = root / split
    if not folder.is_dir():
        raise Refused(
            f"there is no {folder}; give the folder that holds train/ and val/, or the archives: "
            "--train-tar, --val-tar and --val-classes"
        )
    if not (names := class_folders(folder)):
        raise Refused(f"{folder} has no class folders; unpack the images into {folder}/<wnid>/")
    return {name: len(image_files(folder / name)) for name in names}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
