"""Make a dataset ready for training: `python -m lsgd.prepare DATASET …`."""

import argparse
import sys
from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.prepare import cifar10, fashion_mnist, imagenet, tiny_imagenet


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lsgd.prepare", description=__doc__)
    datasets = parser.add_subparsers(required=True, metavar="DATASET")
    for dataset in (imagenet, tiny_imagenet, cifar10, fashion_mnist):
        dataset.add_parser(datasets)
    given = parser.parse_args(argv)
    # Not comm.run_command: nothing here needs torch, and what goes on is the command itself.
    try:
        given.command(given)
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"lsgd: {error}; once that is mended, the same command goes on", file=sys.stderr)
        return Refused.exit_code
    except KeyboardInterrupt:
        print("\nlsgd: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
