"""`python data/tiny-imagenet/prepare.py …` is `python -m lsgd.prepare tiny-imagenet …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["tiny-imagenet", *sys.argv[1:]]))
