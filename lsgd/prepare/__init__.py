"""The preparation of datasets on disk: download, unpack, verify, index, check and shard.

This package itself has the limit on the pixels of an image, above which no loader reads it.
"""

import argparse

from lsgd.job.command import integer_from

MAX_PIXELS = 2**29 // 3
"""The default for the most pixels of an image, 512 MiB in RGB.

Above it PIL refuses an image, and DALI's JPEG decoder falls back to a slower one.
"""


def add_max_pixels(parser: argparse.ArgumentParser) -> None:
    """Add `--max-pixels`, the limit on the pixels of an image, to a command line."""
    parser.add_argument(
        "--max-pixels",
        type=integer_from(1),
        default=MAX_PIXELS,
        metavar="N",
        help="skip larger images (default: %(default)s pixels)",
    )
