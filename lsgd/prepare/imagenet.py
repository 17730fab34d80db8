"""Prepare ImageNet (ILSVRC 2012) for training, from its archives or from a folder."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.inputs.index import image_files
from lsgd.job.command import Parser, integer_from
from lsgd.job.system import count_usable_cores
from lsgd.override_syntax import shell_override
from lsgd.prepare import add_max_pixels, verify
from lsgd.prepare.check import list_unusable, skipped_class_faults
from lsgd.prepare.fetch import is_writable, locked_folder
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.journal import Journal
from lsgd.prepare.parquet import copy_files, missing_files, unpack_copy
from lsgd.prepare.shards import write_shards
from lsgd.prepare.unpack import check_val, unpack_train, unpack_val
from lsgd.prepare.validation import WHERE_FROM, ValClasses, check_sorted, sort_val
from lsgd.recipe.image_folder import read_skip_list

TRAIN, VAL, CLASSES = 1_281_167, 50_000, 1000

HELP = "ILSVRC 2012: unpack, sort, verify, index, check, write shards"

EPILOG = """\
steps, in this order; rerun an interrupted command to resume it:
  1. unpack   --train-tar and --val-tar, or Hugging Face's copy (--parquet:
              train-00000-of-00294.parquet … and validation-…, or the older
              train_images_0.tar.gz … and val_images.tar.gz), straight into
              ROOT/train/<wnid>/ and ROOT/val/<wnid>/
  2. sort     images directly in ROOT/val, into class folders, by --val-classes: the devkit's
              archive, Kaggle's table, or lines of an image and its wnid or number (0 to 999)
  3. verify   the class folders against the 1000 of ILSVRC 2012, and the totals 1,281,167 and 50,000
  4. index    train.index.npy and val.index.npy, from the header of every image
  5. check    with --check: decode every image; skip.txt lists those that cannot be decoded
  6. shards   with --shards FOLDER: the same images in tar files, in WebDataset's layout

an error ends the command, as a run could not use the folder:
  train/ and val/ with different classes, a class without images, a folder of 1000 classes or more
  of which some are not ILSVRC's (it looks like all of ImageNet, and its labels would differ)
a warning does not; if it is intended, pass it to lsgd as an override:
  classes missing, other totals, and in a folder of fewer than 1000 classes: unknown ones

examples:
  python -m lsgd.prepare imagenet /data/imagenet --train-tar ILSVRC2012_img_train.tar \\
      --val-tar ILSVRC2012_img_val.tar --val-classes ILSVRC2012_devkit_t12.tar.gz --check
  python -m lsgd.prepare imagenet /data/imagenet --parquet imagenet-1k    (Hugging Face's copy)
  python -m lsgd.prepare imagenet /shared/imagenet --index ~/imagenet-index    (read-only)
  python -m lsgd.prepare imagenet ILSVRC/Data/CLS-LOC --val-classes LOC_val_solution.csv
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command that prepares ImageNet to the command line."""
    parser = subparsers.add_parser(
        "imagenet",
        help=HELP,
        text=f"{__doc__}\n\n{EPILOG}",
        usage="python -m lsgd.prepare imagenet ROOT [options]",
    )
    parser.add_path("root", "ROOT", argparse.SUPPRESS)
    parser.add_path("--train-tar", "TAR", "ILSVRC2012_img_train.tar")
    parser.add_path("--val-tar", "TAR", "ILSVRC2012_img_val.tar")
    parser.add_path(
        "--parquet", "FOLDER", "the folder of Hugging Face's copy, parquet or tar files"
    )
    parser.add_path(
        "--val-classes", "FILE", "the classes of val: the devkit, or Kaggle's LOC_val_solution.csv"
    )
    parser.add_path("--index", "FOLDER", "the folder for the indexes (default: ROOT)")
    parser.add_argument("--check", action="store_true", help="decode every image")
    add_max_pixels(parser)
    parser.add_path("--shards", "FOLDER", "write tar shards to this folder")
    parser.add_argument(
        "--shard-mb",
        type=integer_from(1),
        default=512,
        metavar="N",
        help="million bytes each (default: 512)",
    )
    parser.add_argument(
        "--processes",
        type=integer_from(1),
        default=count_usable_cores(),
        metavar="N",
        help="default: the cores, here %(default)s",
    )
    parser.set_defaults(command=prepare)


def prepare(options: argparse.Namespace) -> None:
    """Prepare ImageNet as the options ask, and print the command that trains on it.

    Raises UsageError, before anything is written wherever the problem can be known then.
    """
    _check_options(options)
    with ExitStack() as locks:
        for folder in {options.index or options.root, options.shards} - {None}:
            locks.enter_context(locked_folder(folder))
        _prepare(options)


def _prepare(options: argparse.Namespace) -> None:
    """Unpack, verify, index, check and shard ImageNet, with the folders locked by the caller."""
    root, index, processes = options.root, options.index or options.root, options.processes
    unpacked = Journal(index / "parquet.jsonl") if options.parquet else None
    _fill(root, options, unpacked)
    counted = verify.verify(root, TRAIN, VAL)
    for line in counted.lines:
        print(line, flush=True)
    index.mkdir(parents=True, exist_ok=True)
    limits = {"processes": processes, "max_pixels": options.max_pixels}
    unreadable = index_folder(root, index, **limits)
    print(f"index: {index}/train.index.npy and val.index.npy", flush=True)
    overrides = [shell_override("data.root", root), *counted.overrides]
    if options.index:
        overrides.insert(1, shell_override("data.index", index))
    if options.check:
        if skip := list_unusable(root, index, **limits):
            if faults := skipped_class_faults(root, read_skip_list(skip)):
                raise UsageError(f"{'; '.join(faults)}; replace images that {skip} names and rerun")
            overrides.append(shell_override("data.skip_list", skip))
    elif unreadable:
        raise UsageError(
            f"{len(unreadable)} images are cut short, not images, not for every loader, or of "
            f"more than --max-pixels {options.max_pixels} ({', '.join(unreadable[:3])} …) and "
            "would stop a run; replace them, or add --check, which gives the reasons and writes "
            "a skip list of all unusable images"
        )
    if options.shards:
        shards = write_shards(
            root, index, options.shards, megabytes=options.shard_mb, processes=processes
        )
        print(f"shards: {shards} in {options.shards}, with an index")
        overrides = [
            each for each in overrides if "data.root=" not in each and "data.index=" not in each
        ]
        overrides.insert(0, shell_override("data.root", options.shards))
    if unpacked:
        unpacked.remove()
    print(f"ready: python -m lsgd.train recipe=bs256 {' '.join(overrides)}")


def _check_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options of the ImageNet command that cannot work, before writing."""
    if not (options.train_tar or options.parquet or (options.root / "train").is_dir()):
        raise UsageError(
            f"there is no {options.root / 'train'}; give the folder that contains train/ and val/, "
            "--parquet, or the archives: --train-tar, --val-tar and --val-classes"
        )
    for option in ("train_tar", "val_tar", "val_classes"):
        file = getattr(options, option)
        if file and not file.is_file():
            raise UsageError(
                f"--{option.replace('_', '-')} {file} does not exist; give an existing file"
            )
    if options.parquet:
        copy_files(options.parquet)
    for option in ("index", "shards"):
        folder = getattr(options, option)
        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(
                f"--{option} {folder} is not a folder; give an existing folder, or a new name"
            )
    taken = {"ROOT": options.root, "--index": options.index}
    taken |= {f"ROOT/{split}": options.root / split for split in ("train", "val")}
    for name, folder in taken.items():
        if options.shards and folder and options.shards.resolve() == folder.resolve():
            raise UsageError(
                f"--shards {options.shards} is {name} itself; give a folder of its own"
            )
    index = options.index or options.root
    if not is_writable(index):
        raise UsageError(f"{index} cannot be written; give --index FOLDER for the indexes")


def _fill(root: Path, options: argparse.Namespace, unpacked: Journal | None) -> None:
    """Unpack ImageNet's archives and sort its images until all are in their class folders.

    `unpacked` has the images of each file of Hugging Face's copy; None without a copy.
    """
    class_of = ValClasses(options.val_classes) if options.val_classes else None
    if class_of and options.val_tar:
        # Check the small archive before unpacking the large one.
        check_val(options.val_tar, class_of)
    flat = image_files(root / "val") if (root / "val").is_dir() else []
    if class_of is None and flat:
        raise UsageError(
            f"{root / 'val'} has {len(flat)} images in no class folder ({flat[0]} …); give "
            f"{WHERE_FROM}"
        )
    if class_of is None and options.val_tar:
        raise UsageError(f"--val-tar does not give the class of an image; give {WHERE_FROM}")
    if unpacked:
        copy = copy_files(options.parquet)
        for line in missing_files(copy):
            print(f"warning: {line}", flush=True)
        counts = unpack_copy(copy, root, unpacked, processes=options.processes)
        for split, count in sorted(counts.items()):
            _say(split, count)
    if options.train_tar:
        _say("train", unpack_train(options.train_tar, root / "train", processes=options.processes))
    if class_of:
        val = root / "val"
        if flat:
            print(f"val: {sort_val(val, class_of):,} images sorted into classes", flush=True)
        if options.val_tar:
            _say("val", unpack_val(options.val_tar, val, class_of, processes=options.processes))
        check_sorted(val, class_of)


def _say(split: str, counts: tuple[int, int]) -> None:
    """Print how many images of a split were unpacked and how many existed already."""
    print(f"{split}: {counts[0]:,} images unpacked, {counts[1]:,} were there", flush=True)
