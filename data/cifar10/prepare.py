"""`python data/cifar10/prepare.py …` is `python -m lsgd.prepare cifar10 …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["cifar10", *sys.argv[1:]]))
