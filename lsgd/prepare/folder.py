"""Any folder of images: looked through for what a run would stumble over, and indexed."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import Refused
from lsgd.prepare.words import word

HELP = "a folder of your own images, a folder for each class: look through, index"

EPILOG = """\
ROOT has the form of torchvision's ImageFolder, and classes are numbered by their names as there:
  ROOT/train/CLASS/*.jpg   to train on; also .jpeg, .png, .bmp, .ppm, .pgm, .tif, .tiff, .webp
  ROOT/val/CLASS/*.jpg     of the same classes, to evaluate on

an error ends the command, since a run could not make sense of it: a class that only train or only
val has, one without an image, a file that is cut short or no image whatever its name says
a warning does not: files and folders that are left out, classes with a single image to train on

examples:
  python -m lsgd.prepare folder /data/flowers
  python -m lsgd.prepare folder /shared/flowers --index ~/flowers-index    (read-only)
  python -m lsgd.train +recipe=bs256 data=folder data.root=/data/flowers data.image_size=64
"""

N, K = 32, 8
"""The images of a worker, and the workers, of the recipe that is shown to go on with."""
STEPS = 10
"""The updates that an epoch should have: with few, 90 epochs of a small folder learn little."""


class Found(NamedTuple):
    """What is odd about a folder of images."""

    faults: list[str]
    """What a run would refuse or stop at."""
    remarks: list[str]
    """What may be meant."""
    images: dict[str, int]
    """The number of images of each split."""
    classes: int


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `folder` to the command line."""
    parser = subparsers.add_parser(
        "folder",
        help=HELP,
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder with train/ and val/")
    parser.add_argument(
        "--index", type=Path, metavar="FOLDER", help="where the indexes go (default: ROOT)"
    )
    parser.set_defaults(command=lambda options: prepare(options.root, options.index))


def prepare(root: Path, index: Path | None = None) -> None:
    """Look through the folder, index it, and print the words to give to a run.

    Raises Refused for all that a run could not make sense of, in one sentence.
    """
    # Imported here, so that --help need not wait for what it imports in turn.
    from lsgd.prepare.fetch import filling
    from lsgd.prepare.scan import index_folder

    _check_place(root, index or root)
    with filling(index or root):
        found = look_through(root)
        for remark in found.remarks:
            print(f"warning: {remark}", flush=True)
        if not found.faults:
            unusable = index_folder(root, index, processes=len(os.sched_getaffinity(0)))
            found.faults.extend(_reasons(root, unusable))
        if found.faults:
            raise Refused(f"{'; '.join(found.faults)}; mend that and run the same command again")
    train, val = found.images["train"], found.images["val"]
    print(f"{found.classes:,} classes, {train:,} images in train and {val:,} in val, indexed")
    words = [word("data.root", root), *([word("data.index", index)] if index else [])]
    words += words_that_fit(train)
    print(f"ready: python -m lsgd.train +recipe=bs256 data=folder {' '.join(words)}")


def look_through(root: Path) -> Found:
    """What the names of folders and files say; no image is opened."""
    from lsgd.inputs.index import SPLITS, class_folders, image_files

    classes = {split: class_folders(root / split) for split in SPLITS}
    images = {
        split: {name: image_files(root / split / name) for name in names}
        for split, names in classes.items()
    }
    faults, remarks, others = [], [], []
    for split, other in (SPLITS, SPLITS[::-1]):
        if alone := [name for name in classes[split] if name not in classes[other]]:
            faults.append(
                f"{_count(alone, 'class is', 'classes are')} only in {root / split} "
                f"({_some(alone)}) and not in {other}, and classes are numbered by their place "
                "among the folders"
            )
        if empty := [name for name, files in images[split].items() if not files]:
            faults.append(
                f"{_count(empty, 'class has', 'classes have')} no image in {root / split} "
                f"({_some(empty)})"
            )
        others += [f"{split}/{name}" for name in _names(root / split) if name not in images[split]]
        for name, files in images[split].items():
            left = _names(root / split / name).difference(files)
            others += [f"{split}/{name}/{each}" for each in left]
    if others:
        remarks.append(
            f"{_count(others, 'entry is', 'entries are')} left out, no image by the name or not in "
            f"the folder of a class itself ({_some(sorted(others))})"
        )
    if single := [name for name, files in images["train"].items() if len(files) == 1]:
        remarks.append(
            f"{_count(single, 'class has', 'classes have')} a single image to train on "
            f"({_some(single)})"
        )
    totals = {split: sum(map(len, files.values())) for split, files in images.items()}
    return Found(faults, remarks, totals, len(classes["train"]))


def _check_place(root: Path, index: Path) -> None:
    for split in ("train", "val"):
        folder = root / split
        if not folder.is_dir() or not any(path.is_dir() for path in folder.iterdir()):
            raise Refused(
                f"there is no {folder}/CLASS; give the folder that has train/CLASS/ to train on "
                "and val/CLASS/ to evaluate on, each with the images of a class"
            )
    if index.exists() and not (index.is_dir() and os.access(index, os.W_OK)):
        raise Refused(f"{index} cannot be written; give --index FOLDER for the indexes")


def _reasons(root: Path, unusable: Sequence[str]) -> list[str]:
    """A sentence on the images that no loader, or not every one, can use."""
    from lsgd.prepare.images import FATAL, look

    if not unusable:
        return []
    reasons = []
    for path in unusable[:3]:
        kinds = [f"{kind}: {detail}" for kind, detail in look(root / path) if kind in FATAL]
        reasons.append(f"{path}, {kinds[0]}" if kinds else path)
    more = f" and {len(unusable) - 3} more" if len(unusable) > 3 else ""
    what = _count(unusable, "file is", "files are")
    return [f"{what} no image that can be used ({'; '.join(reasons)}{more})"]


def words_that_fit(train: int) -> list[str]:
    """The words with which an epoch of so many images has STEPS updates, or as many as it can have;
    none where the recipe has them by itself.

    >>> words_that_fit(24), words_that_fit(700), words_that_fit(2560)
    (['workers=1', 'worker_batch=24'], ['workers=2'], [])
    """
    if train < N:
        return ["workers=1", f"worker_batch={train}"]
    workers = max(1, train // (N * STEPS))
    return [f"workers={workers}"] if workers < K else []


def _names(folder: Path) -> set[str]:
    """What is in a folder, without what is hidden."""
    return {name for name in os.listdir(folder) if not name.startswith(".")}


def _count(names: Sequence[str], one: str, several: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else several}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
