"""`python data/imagenet/prepare.py ROOT …` is `python -m lsgd.prepare imagenet ROOT …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["imagenet", *sys.argv[1:]]))
