"""`python data/ptb/prepare.py …` is `python -m lsgd.prepare ptb …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["ptb", *sys.argv[1:]]))
