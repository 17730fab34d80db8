"""Prepare a dataset for training: `python -m lsgd.prepare DATASET …`."""

import re
import sys
from collections.abc import Sequence

from lsgd.errors import UsageError, dangling_link, disk_full_error
from lsgd.job.command import Parser, run_alone
from lsgd.paths import data_root
from lsgd.prepare import cifar10, folder, imagenet, tiny_imagenet, webdataset
from lsgd.prepare.fetch import add_command
from lsgd.prepare.published import PUBLISHED


def main(argv: Sequence[str]) -> int:
    """Run `python -m lsgd.prepare` with these arguments; return the exit code."""
    return run_alone(lambda: prepare(argv), go_on="rerun the same command to resume")


def prepare(argv: Sequence[str]) -> None:
    """Prepare the dataset that the command line names: download or unpack, check and index it.

    Raises UsageError, also where the disk or the network fails, and the error of a full disk.
    """
    parser = Parser("lsgd.prepare", __doc__)
    datasets = parser.add_subparsers(required=True, metavar="DATASET")
    for images in (folder, webdataset, imagenet):
        images.add_parser(datasets)
    for archive in (tiny_imagenet, cifar10):
        add_command(datasets, archive.NAME, archive.SUMMARY, archive.prepare)
    for published in PUBLISHED:
        published.add_parser(datasets)
    options = parser.parse_args(argv)
    if options.root is None:  # an unusable default must not end other commands, or --help
        options.root = data_root(options.dataset)
    for name in ("root", "index", "shards"):  # which become overrides of later runs
        if re.search("[\ud800-\udfff]", path := str(getattr(options, name, ""))):
            raise UsageError(
                f"{path} is not UTF-8, which recipes require; rename the folder, or change into "
                "it and write ."
            )
    try:
        options.command(options)
    except OSError as error:
        if full := disk_full_error(error):
            raise full from error
        why = dangling_link(error) or error
        raise UsageError(f"{why}; fix that and rerun the same command to resume") from error


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
