"""ImageNet (ILSVRC 2012): from the archives or a folder to what a run reads."""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from lsgd.errors import Refused
from lsgd.prepare.words import word

TRAIN, VAL, CLASSES = 1_281_167, 50_000, 1000

HELP = "ILSVRC 2012: unpack, sort, verify, index, check, write shards"

EPILOG = """\
what happens, in this order; a command that was ended at any moment goes on when given again:
  1. unpack   --train-tar and --val-tar, straight into ROOT/train/<wnid>/ and ROOT/val/<wnid>/
  2. sort     images that lie in ROOT/val itself, into class folders, by --val-classes
  3. verify   the class folders against the 1000 of ILSVRC 2012, and the totals 1,281,167 and 50,000
  4. index    train.index.npy and val.index.npy, from the header of every image
  5. check    with --check: every image is decoded; skip.txt names those that cannot be
  6. shards   with --shards FOLDER: the same images in tar files, in WebDataset's layout

an error ends the command; of these a run could not make sense:
  train/ and val/ with different classes, a class without images, a folder of 1000 classes or more
  of which some are not ILSVRC's (it claims to be all of ImageNet, and its labels would be others)
a warning does not; what it names may be meant, and is then given to lsgd in so many words:
  classes missing, other totals, and in a folder of fewer than 1000 classes: unknown ones

examples:
  python -m lsgd.prepare imagenet /data/imagenet --train-tar ILSVRC2012_img_train.tar \\
      --val-tar ILSVRC2012_img_val.tar --val-classes ILSVRC2012_devkit_t12.tar.gz --check
  python -m lsgd.prepare imagenet /shared/imagenet --index ~/imagenet-index    (read-only)
  python -m lsgd.prepare imagenet ILSVRC/Data/CLS-LOC --val-classes LOC_val_solution.csv
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `imagenet` to the command line."""
    parser = subparsers.add_parser(
        "imagenet",
        help=HELP,
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder with train/ and val/")
    parser.add_argument("--train-tar", type=Path, metavar="TAR", help="ILSVRC2012_img_train.tar")
    parser.add_argument("--val-tar", type=Path, metavar="TAR", help="ILSVRC2012_img_val.tar")
    parser.add_argument(
        "--val-classes",
        type=Path,
        metavar="FILE",
        help="which class each validation image is of: ILSVRC2012_devkit_t12.tar.gz, Kaggle's "
        "LOC_val_solution.csv, or lines of an image and its wnid or number (0 to 999)",
    )
    parser.add_argument(
        "--index", type=Path, metavar="FOLDER", help="where the indexes go (default: ROOT)"
    )
    parser.add_argument("--check", action="store_true", help="decode every image")
    parser.add_argument("--shards", type=Path, metavar="FOLDER", help="write tar shards there")
    parser.add_argument(
        "--shard-mb", type=int, default=512, metavar="N", help="million bytes each (default: 512)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="default: as many as there are cores, here %(default)s",
    )
    parser.set_defaults(command=prepare)


def prepare(options: argparse.Namespace) -> None:
    """Do what the command line asks for, and print the words to give to a run.

    Raises Refused, before anything is written wherever that can be known.
    """
    # Imported here, so that --help need not wait for what it imports in turn.
    from lsgd.prepare.fetch import filling

    _check_options(options)
    with ExitStack() as locks:
        for folder in {options.index or options.root, options.shards} - {None}:
            locks.enter_context(filling(folder))
        _prepare(options)


def _prepare(options: argparse.Namespace) -> None:
    from lsgd.prepare import verify
    from lsgd.prepare.check import check_folder, table, write_skip_list
    from lsgd.prepare.scan import index_folder
    from lsgd.prepare.shards import write_shards

    root, index, processes = options.root, options.index or options.root, options.processes
    _fill(root, options)
    counted = verify.verify(root, TRAIN, VAL)
    for line in counted.lines:
        print(line, flush=True)
    index.mkdir(parents=True, exist_ok=True)
    unreadable = index_folder(root, index, processes=processes)
    print(f"index: {index}/train.index.npy and val.index.npy", flush=True)
    words = [word("data.root", root), *counted.words]
    if options.index:
        words.insert(1, word("data.index", index))
    if options.check:
        oddities = check_folder(root, index, processes=processes)
        print(f"{table(oddities)}\nall of them: {index}/check.tsv", flush=True)
        skip = index / "skip.txt"
        skipped, usable = write_skip_list(oddities, skip)
        if skipped:
            print(f"{skip} names {skipped} images to leave out")
            words.append(word("data.skip_list", skip))
        if usable:
            print(
                f"  {usable} of them were there before and are not unusable: a line can be removed"
            )
    elif unreadable:
        raise Refused(
            f"{len(unreadable)} images are cut short, none, or not for every loader "
            f"({', '.join(unreadable[:3])} …) and would stop a run; replace them, or add --check, "
            "which says why and writes a skip list of all that cannot be used"
        )
    if options.shards:
        shards = write_shards(
            root, index, options.shards, megabytes=options.shard_mb, processes=processes
        )
        print(f"shards: {shards} in {options.shards}, with an index")
        words = [each for each in words if "data.root=" not in each and "data.index=" not in each]
        words.insert(0, word("data.root", options.shards))
    print(f"ready: python -m lsgd.train +recipe=bs256 {' '.join(words)}")


def _check_options(options: argparse.Namespace) -> None:
    if not options.train_tar and not (options.root / "train").is_dir():
        raise Refused(
            f"there is no {options.root / 'train'}; give the folder that holds train/ and val/, or "
            "the archives: --train-tar, --val-tar and --val-classes"
        )
    for option in ("train_tar", "val_tar", "val_classes"):
        file = getattr(options, option)
        if file and not file.is_file():
            raise Refused(f"--{option.replace('_', '-')} {file}: there is no such file")
    for option in ("processes", "shard_mb"):
        if (number := getattr(options, option)) < 1:
            raise Refused(f"--{option.replace('_', '-')} {number} is not possible; write 1 or more")
    for option in ("index", "shards"):
        folder = getattr(options, option)
        if folder and folder.exists() and not folder.is_dir():
            raise Refused(f"--{option} {folder} is no folder; give one that is, or a new name")
    taken = {"ROOT": options.root, "--index": options.index}
    taken |= {f"ROOT/{split}": options.root / split for split in ("train", "val")}
    for name, folder in taken.items():
        if options.shards and folder and options.shards.resolve() == folder.resolve():
            raise Refused(f"--shards {options.shards} is {name} itself; give a folder of its own")
    index = options.index or options.root
    if index.is_dir() and not os.access(index, os.W_OK):
        raise Refused(f"{index} cannot be written; give --index FOLDER for the indexes")


def _fill(root: Path, options: argparse.Namespace) -> None:
    """Unpack and sort, until every image lies in its class folder."""
    from lsgd.inputs.index import image_files
    from lsgd.prepare.unpack import check_val, unpack_train, unpack_val
    from lsgd.prepare.validation import WHERE_FROM, ValClasses, check_sorted, sort_val

    class_of = ValClasses(options.val_classes) if options.val_classes else None
    if class_of and options.val_tar:
        # Of two archives the small one is looked at before the large one is unpacked.
        check_val(options.val_tar, class_of)
    flat = image_files(root / "val") if (root / "val").is_dir() else []
    if class_of is None and flat:
        raise Refused(
            f"{root / 'val'} has {len(flat)} images in no class folder ({flat[0]} …); give "
            f"{WHERE_FROM}"
        )
    if class_of is None and options.val_tar:
        raise Refused(f"--val-tar does not say which class an image is of; give {WHERE_FROM}")
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
    print(f"{split}: {counts[0]:,} images unpacked, {counts[1]:,} were there", flush=True)
