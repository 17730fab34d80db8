"""The preparation of datasets on disk: download, unpack, verify, index, check and shard.

This package itself has the option that limits the pixels of an image, and a format of names.
"""

import argparse
from collections.abc import Sequence

from lsgd.job.command import integer_from
from lsgd.untrusted_files import MAX_PIXELS as MAX_PIXELS


def add_max_pixels(parser: argparse.ArgumentParser) -> None:
    """Add `--max-pixels`, the limit on the pixels of an image, to a command line."""
    parser.add_argument(
        "--max-pixels",
        type=integer_from(1),
        default=MAX_PIXELS,
        metavar="N",
        help="skip larger images (default: %(default)s pixels)",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add `--processes`, the number of processes that read images, to a command line.

    Its default, None, means one for each core.
    """
    parser.add_argument(
        "--processes",
        type=integer_from(1),
        metavar="N",
        help="processes that read images (default: the cores)",
    )


def listed(names: Sequence[str]) -> str:
    """Join the first five names with commas, with an ellipsis if there are more."""
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
