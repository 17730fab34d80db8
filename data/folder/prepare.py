"""`python data/folder/prepare.py ROOT …` is `python -m lsgd.prepare folder ROOT …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["folder", *sys.argv[1:]]))
