"""Make a dataset ready for training: `python -m lsgd.prepare DATASET …`."""

import sys
from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.job.command import Parser, run_alone
from lsgd.prepare import (
    cifar10,
    conll2003,
    fashion_mnist,
    folder,
    imagenet,
    ptb,
    sst,
    tiny_imagenet,
)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: prepare(argv), go_on="the same command goes on")


def prepare(argv: Sequence[str]) -> None:
    """Make the dataset ready that the words name.

    Raises Refused, also where the disk or the network does not let it go on.
    """
    parser = Parser("lsgd.prepare", __doc__)
    datasets = parser.add_subparsers(required=True, metavar="DATASET")
    for dataset in (folder, imagenet, tiny_imagenet, cifar10):
        dataset.add_parser(datasets)
    for published in (fashion_mnist, ptb, conll2003, sst):
        published.SET.add_parser(datasets)
    options = parser.parse_args(argv)
    try:
        options.command(options)
    except OSError as error:
        raise Refused(f"{error}; once that is mended, the same command goes on") from error


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
