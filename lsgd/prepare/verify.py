"""The comparison of an image folder with ILSVRC 2012: its classes and its totals."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import UsageError
from lsgd.inputs.index import SPLITS, class_folders, image_files, leftovers
from lsgd.prepare import listed
from lsgd.prepare.validation import imagenet_classes


class Verification(NamedTuple):
    """The result of comparing a folder with ImageNet: lines to print, overrides for runs."""

    lines: list[str]
    overrides: list[str]


def verify(root: Path, train_total: int, val_total: int) -> Verification:
    """Compare an image folder with all of ImageNet; return remarks and the overrides for runs.

    A subset is accepted. Raises UsageError if the folder cannot be trained on, or if its labels
    would differ from ImageNet's.
    """
    counts = {split: _images(root, split) for split in SPLITS}
    train, val = counts["train"], counts["val"]
    if odd := sorted(train.keys() ^ val.keys()):
        raise UsageError(
            f"train and val of {root} differ in {len(odd)} classes ({listed(odd)}); classes are "
            "numbered by the order of their folders, so give both the same folders"
        )
    for split, folders in counts.items():
        if empty := [name for name, number in folders.items() if number == 0]:
            raise UsageError(
                f"{len(empty)} classes of {root / split} have no image in the folder itself "
                f"({listed(empty)}); add their images, or remove the folder from train and val"
            )
    names, lines = list(train), []
    if hidden := [f"{split}/{name}" for split in SPLITS for name in leftovers(root / split)]:
        lines.append(f"warning: skipped, as hidden or system files: {listed(hidden)}")
    totals = sum(train.values()), sum(val.values())
    unknown = [name for name in names if name not in imagenet_classes()]
    missing = [name for name in imagenet_classes() if name not in train]
    if unknown:
        numeric = all(name.isdecimal() for name in unknown)
        line = f"{len(unknown)} class folders are not of ILSVRC 2012 ({listed(unknown)})"
        if numeric:
            line += "; numbers sort as text, 0, 1, 10, 100, …, so class 2 is not the folder 2"
        if len(names) >= len(imagenet_classes()):
            raise UsageError(f"{line}; rename or remove them, so that {root} has the 1000 wnids")
        lines.append(f"warning: {line}")
    if missing:
        named = [f"{name} {imagenet_classes()[name]}" for name in missing]
        lines.append(f"warning: {len(missing)} of the 1000 classes are missing ({listed(named)})")
    elif uneven := [
        name for name, number in val.items() if number != val_total // len(imagenet_classes())
    ]:
        lines.append(
            f"warning: {len(uneven)} classes do not have 50 images in val ({listed(uneven)})"
        )
    wanted = (
        ("train_examples", totals[0], train_total),
        ("val_examples", totals[1], val_total),
        ("classes", len(names), len(imagenet_classes())),
    )
    overrides = [f"data.{name}={number}" for name, number, expected in wanted if number != expected]
    summary = f"{len(names):,} classes, {totals[0]:,} images in train and {totals[1]:,} in val"
    if overrides:
        lines.append(
            f"warning: {summary}, and all of ImageNet is {len(imagenet_classes())}, "
            f"{train_total:,} and {val_total:,}; if that is intended, train with "
            f"{' '.join(overrides)}"
        )
    else:
        lines.append(f"verified: {summary}, as in ILSVRC 2012")
    return Verification(lines, overrides)


def _images(root: Path, split: str) -> Mapping[str, int]:
    """Return the number of images in each class folder of a split, by class."""
    folder = root / split
    if not folder.is_dir():
        raise UsageError(
            f"there is no {folder}; give the folder that contains train/ and val/, --parquet, or "
            "the archives: --train-tar, --val-tar and --val-classes"
        )
    if not (names := class_folders(folder)):
        raise UsageError(f"{folder} has no class folders; unpack the images into {folder}/<wnid>/")
    return {name: len(image_files(folder / name)) for name in names}
