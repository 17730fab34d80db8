"""Check any folder of images for problems that would stop a run, and index it."""

import argparse
import os
from collections.abc import Collection, Iterator, Sequence
from os.path import join
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.inputs import is_dali_installed
from lsgd.inputs.index import IMAGE_SUFFIXES, SPLITS, class_folders, image_files, leftovers
from lsgd.installation import install_command
from lsgd.job.command import Parser, number_type
from lsgd.job.system import count_usable_cores
from lsgd.override_syntax import shell_override
from lsgd.prepare import add_max_pixels, add_processes, listed
from lsgd.prepare.check import list_unusable, skipped_class_faults, skipped_classes, usable_images
from lsgd.prepare.fetch import is_writable, locked_folder
from lsgd.prepare.images import FATAL, image_problems
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.split import check_not_flat, parts_beside, split_folder, unsplit_classes
from lsgd.recipe.fields import set_names
from lsgd.recipe.image_folder import read_skip_list

HELP = "check and index a folder of your own images with a folder for each class"

EPILOG = """\
ROOT has the layout of torchvision's ImageFolder; classes are numbered by name as there,
except that hidden names and system folders, such as .ipynb_checkpoints and @eaDir, are skipped:
  ROOT/train/CLASS/*.jpg   to train on; also .jpeg, .png, .bmp, .ppm, .pgm, .tif, .tiff, .webp
  ROOT/val/CLASS/*.jpg     of the same classes, to evaluate on

an error ends the command, as a run could not use the folder: a class that only train or only val
has, a class without an image, a file that is cut short or is not an image despite its name
a warning does not: skipped files and folders, classes with a single image to train on, and with
--allow-empty-classes a class that is missing or empty in val
--check decodes every image; skip.txt lists the unusable ones, which are not an error then

examples:
  python -m lsgd.prepare folder /data/flowers
  python -m lsgd.prepare folder /data/photos --split 0.2                   (without train and val)
  python -m lsgd.prepare folder /shared/flowers --index ~/flowers-index    (read-only)
  python -m lsgd.train recipe=bs256 data=folder data.root=/data/flowers data.image_size=64
"""

PLAIN_SUFFIXES = (".jpeg", ".jpg", ".png")
"""The suffixes of the image formats that every loader reads."""


class FolderProblems(NamedTuple):
    """The problems that a check of an image folder has found, and the folder's size."""

    errors: list[str]
    """The problems that would stop a run."""
    warnings: list[str]
    """The problems that may be intended."""
    classes: int


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command that checks and indexes any image folder to the command line."""
    parser = subparsers.add_parser(
        "folder",
        help=HELP,
        text=f"{__doc__}\n\n{EPILOG}",
        usage="python -m lsgd.prepare folder ROOT [options]",
    )
    parser.add_path("root", "ROOT", "folder with train/ and val/")
    parser.add_path("--index", "FOLDER", "the folder for the indexes (default: ROOT)")
    parser.add_argument(
        "--split",
        type=number_type(lambda share: 0 < share < 1, "between 0 and 1, such as 0.2"),
        metavar="SHARE",
        help="link this share of ROOT/CLASS/ to ROOT-split/val, the others to train",
    )
    parser.add_path("--out", "FOLDER", "the folder for these links")
    parser.add_argument(
        "--allow-empty-classes", action="store_true", help="allow classes without an image in val"
    )
    parser.add_argument(
        "--sets",
        type=_set_names,
        default=[],
        metavar="NAME,...",
        help="more folders to evaluate on, such as v2",
    )
    parser.add_argument(
        "--check", action="store_true", help="decode every image; skip.txt lists the unusable ones"
    )
    add_max_pixels(parser)
    add_processes(parser)
    parser.set_defaults(command=_prepare)


def _set_names(text: str) -> list[str]:
    """Parse the names of evaluation sets, separated by commas; val is always indexed."""
    names = [name for name in text.split(",") if name != "val"]
    try:
        set_names()["set_names"].enforce("--sets", ["val", *names])
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _prepare(options: argparse.Namespace) -> None:
    """Divide the image folder if the command line asks for it, and prepare the divided one."""
    root, processes = options.root, options.processes or count_usable_cores()
    if options.out and not options.split:
        raise UsageError(f"--out {options.out} is for the links of --split; leave it out")
    if options.split:
        divided = split_folder(
            root, options.out, options.split, processes=processes, sets=options.sets
        )
        root = divided.folder
        if divided.empty:
            print(
                f"warning: {_count(divided.empty, 'folder has', 'folders have')} no image and "
                f"{'is' if len(divided.empty) == 1 else 'are'} skipped ({listed(divided.empty)})"
            )
        source = divided.source
        if lost := _lost_classes(source, [""]):
            raise UsageError(f"{lost[0]}; fix that in {source} and rerun the same command")
        images_of = {name: image_files(source / name) for name in class_folders(source)}
        for remark in _skipped(source, {"": images_of}):
            print(f"warning: {remark}", flush=True)
        images = divided.train + divided.val
        copies = f"; {divided.copies:,} have the content of another" if divided.copies else ""
        print(
            f"{images:,} images divided by their content into {divided.train:,} in {root}/train "
            f"and {divided.val:,} in {root}/val, as links{copies}"
        )
    prepare(
        root,
        options.index,
        options.max_pixels,
        allow_empty_classes=options.allow_empty_classes,
        sets=options.sets,
        decodes_all=options.check,
        processes=processes,
    )


def prepare(
    root: Path,
    index: Path | None,
    max_pixels: int,
    *,
    allow_empty_classes: bool = False,
    sets: Sequence[str] = (),
    decodes_all: bool = False,
    processes: int,
) -> None:
    """Check an image folder, index it, and print the command that trains on it.

    With `allow_empty_classes` the validation images may lack some of the classes; the further
    evaluation sets, named by `sets`, always may. With `decodes_all` each image is decoded, and the
    unusable ones go to a skip list. Raises UsageError, in one sentence, for all problems that would
    stop a run.
    """
    _check_place(root, index or root)
    skip, skipped = None, set[str]()
    limits = {"processes": processes, "max_pixels": max_pixels}
    with locked_folder(index or root):
        found = check_names(root, allow_empty_classes=allow_empty_classes)
        found.errors.extend(_set_faults(root, sets))
        for remark in found.warnings:
            print(f"warning: {remark}", flush=True)
        if not found.errors:
            unusable = index_folder(root, index, sets=sets, **limits)
            if decodes_all:
                skip = list_unusable(root, index or root, sets=sets, **limits)
                skipped = read_skip_list(skip) if skip else skipped
                found.errors.extend(_skipped_faults(root, skipped, sets, allow_empty_classes))
            else:
                found.errors.extend(_reasons(root, unusable, max_pixels))
        if found.errors:
            raise UsageError(f"{'; '.join(found.errors)}; fix that and rerun the same command")
    train, val = (usable_images(root, split, skipped) for split in ("train", "val"))
    others = "".join(f", {usable_images(root, name, skipped):,} in {name}" for name in sets)
    print(
        f"{found.classes:,} class{'es' * (found.classes != 1)}, {train:,} "
        f"image{'s' * (train != 1)} in train and {val:,} in val{others}, indexed"
        + f" (without the {len(skipped):,} to skip)"
        * bool(skipped)
    )
    overrides = [
        shell_override("data.root", root),
        *([shell_override("data.index", index)] if index else []),
    ]
    if skip:
        overrides.append(shell_override("data.skip_list", skip))
    if sets:
        overrides.append(f"'evaluation.sets=[val,{','.join(sets)}]'")
    print_suggestion(overrides, train)


def print_suggestion(overrides: Sequence[str], train: int) -> None:
    """Print the command that trains on an indexed folder of `train` images, after what it takes.

    `overrides` name the folder.
    """
    if train < 2:
        print("BN needs two images in a step, and train has one: it cannot be trained on")
        return
    # Imported here, to keep --help fast.
    from lsgd.prepare.suggestion import suggested_command

    command, note = suggested_command(overrides, train)
    print(f"{note}\nready: {command}")


def check_names(root: Path, *, allow_empty_classes: bool = False) -> FolderProblems:
    """Check the names of an image folder's classes and files, without opening an image."""
    classes = {split: class_folders(root / split) for split in SPLITS}
    images = {
        split: {name: image_files(root / split / name) for name in names}
        for split, names in classes.items()
    }
    faults, remarks = _lost_classes(root, SPLITS), []
    for split, other in (SPLITS, SPLITS[::-1]):
        alone = [name for name in classes[split] if name not in classes[other]]
        if alone and not (split == "train" and allow_empty_classes):
            faults.append(
                f"{_count(alone, 'class is', 'classes are')} only in {root / split} "
                f"({listed(alone)}) and not in {other}{_equal_names(alone, classes[other])}"
                + ", which --allow-empty-classes allows" * (split == "train")
                + "; classes are numbered by the order of their folders"
            )
        empty = [name for name, files in images[split].items() if not files]
        if empty and not (split == "val" and allow_empty_classes):
            faults.append(
                f"{_count(empty, 'class has', 'classes have')} no image in {root / split} "
                f"({listed(empty)})" + ", which --allow-empty-classes allows" * (split == "val")
            )
    if allow_empty_classes:
        evaluated = {name for name, files in images["val"].items() if files}
        unseen = [name for name in classes["train"] if name not in evaluated]
        if not evaluated:
            faults.append(f"no class has an image in {root / 'val'}")
        elif unseen:
            remarks.append(
                f"{_count(unseen, 'class has', 'classes have')} no image in {root / 'val'} "
                f"({listed(unseen)}), and no evaluation includes them"
            )
    remarks += [*_skipped(root, images), *_doubtful(images)]
    return FolderProblems(faults, remarks, len(classes["train"]))


def _lost_classes(root: Path, splits: Sequence[str]) -> list[str]:
    """Report broken symbolic links among the class folders, in a list of at most one sentence.

    Without the class of such a link the others would have other numbers.
    """
    lost = [
        join(split, name)
        for split in splits
        if (root / split).is_dir()
        for name in sorted(_names(root / split))
        if not (root / split / name).exists() and not name.lower().endswith(IMAGE_SUFFIXES)
    ]
    what = _count(lost, "link leads", "links lead")
    return [f"{what} nowhere ({listed(lost)}), and may be of a class"] if lost else []


_Images = dict[str, dict[str, list[str]]]
"""The names of image files, by split and class."""


def _skipped(root: Path, images: _Images) -> Iterator[str]:
    """Yield remarks on the entries of an image folder that are not images of a class."""
    others = []
    for split, files_of in images.items():
        others += [join(split, name) for name in _names(root / split) if name not in files_of]
        for name, files in files_of.items():
            left = _names(root / split / name).difference(files)
            others += [join(split, name, each) for each in left]
    if hidden := [join(split, name) for split in images for name in leftovers(root / split)]:
        yield (
            f"{_count(hidden, 'entry is', 'entries are')} skipped, as hidden or system files ("
            f"{listed(hidden)})"
        )
    if others:
        yield (
            f"{_count(others, 'entry is', 'entries are')} skipped, as not an image by name or "
            f"not directly in a class folder ({listed(sorted(others))})"
        )


def _doubtful(images: _Images) -> Iterator[str]:
    """Yield remarks on images of which it is not known whether a run can use them well."""
    unsure = [
        f"{split}/{name}/{each}"
        for split, files in images.items()
        for name, names in files.items()
        for each in names
        if not each.lower().endswith(PLAIN_SUFFIXES)
    ]
    if unsure and not is_dali_installed():
        yield (
            f"{_count(unsure, 'image is', 'images are')} neither JPEG nor PNG ({listed(unsure)}), "
            "and whether DALI decodes them is unknown without DALI; run "
            f"{install_command('dali')} and then the same command with --check, which decodes "
            "images that are indexed already too, or train with inputs=torchvision"
        )
    if single := [name for name, files in images["train"].items() if len(files) == 1]:
        yield (
            f"{_count(single, 'class has', 'classes have')} a single image to train on "
            f"({listed(single)})"
        )


def _set_faults(root: Path, sets: Sequence[str]) -> list[str]:
    """Return a sentence for each further evaluation set that has no images of training classes."""
    faults, known = _lost_classes(root, sets), class_folders(root / "train")
    for name in sets:
        found = class_folders(root / name) if (root / name).is_dir() else []
        if not any(image_files(root / name / each) for each in found):
            faults.append(f"{root / name}/CLASS, which --sets names, has no image")
        if alone := [each for each in found if each not in known]:
            faults.append(
                f"{_count(alone, 'class is', 'classes are')} only in {root / name} "
                f"({listed(alone)}) and not in train{_equal_names(alone, known)}, whose names the "
                "classes of a set have"
            )
    return faults


def _skipped_faults(
    root: Path, skipped: Collection[str], sets: Sequence[str], allow_empty_classes: bool
) -> list[str]:
    """Return a sentence for each split that lacks classes, or a set that lacks images, to skip.

    Prints the classes of val without a usable image if `allow_empty_classes` allows them.
    """
    faults = skipped_class_faults(root, skipped, allow_empty_classes=allow_empty_classes)
    faults += [
        f"{root / name} has no usable image"
        for name in sets
        if not usable_images(root, name, skipped)
    ]
    if not faults and (gone := skipped_classes(root, "val", skipped)):
        print(
            f"warning: {_count(gone, 'class has', 'classes have')} no usable image in "
            f"{root / 'val'} ({listed(gone)}), and no evaluation includes them",
            flush=True,
        )
    return faults


def _check_place(root: Path, index: Path) -> None:
    """Raise UsageError unless an image folder has classes and its index can be written."""
    for split in ("train", "val"):
        folder = root / split
        if not folder.is_dir() or not class_folders(folder):
            if source := unsplit_classes(root):
                other = next(iter(parts_beside(source)), None)
                raise UsageError(
                    f"{folder}/CLASS does not exist, and {source} has images of classes; "
                    + f"rename {other} to val to evaluate on its images, or " * bool(other)
                    + "write --split 0.2 to evaluate on a fifth of them, without moving them"
                )
            check_not_flat(root)
            raise UsageError(
                f"{folder}/CLASS does not exist; give the folder that has train/CLASS/ to train on "
                "and val/CLASS/ to evaluate on, each with the images of a class"
            )
    if not is_writable(index):
        raise UsageError(f"{index} cannot be written; give --index FOLDER for the indexes")


def _reasons(root: Path, unusable: Sequence[str], max_pixels: int) -> list[str]:
    """Return a list with one sentence on the images that some loader cannot use, or none."""
    if not unusable:
        return []
    reasons = []
    for path in unusable[:3]:
        kinds = [
            f"{kind}: {detail}"
            for kind, detail in image_problems(root / path, max_pixels)
            if kind in FATAL
        ]
        reasons.append(f"{path}, {kinds[0]}" if kinds else path)
    more = f" and {len(unusable) - 3} more" if len(unusable) > 3 else ""
    what = _count(unusable, "file is", "files are")
    return [
        f"{what} unusable ({'; '.join(reasons)}{more}), which --check lists in a file to be skipped"
    ]


def _names(folder: Path) -> set[str]:
    """List the entries of a folder, without hidden files and those of operating systems."""
    return {name for name in os.listdir(folder) if not paths.is_leftover(name)}


def _count(names: Sequence[str], one: str, several: str) -> str:
    """Format the number of names, followed by a singular or plural phrase."""
    return f"{len(names):,} {one if len(names) == 1 else several}"


def _equal_names(alone: Sequence[str], others: Sequence[str]) -> str:
    """Return a clause on the names whose Unicode equivalent is among others; '' without one."""
    known = {normalize("NFC", each) for each in others}
    equal = [each for each in alone if normalize("NFC", each) in known]
    if not equal:
        return ""
    return (
        f" ({listed(equal)} has there the same letters in other Unicode characters, as in a copy "
        "from a Mac; rename one of the two folders)"
    )
