"""`python data/sst/prepare.py …` is `python -m lsgd.prepare sst …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["sst", *sys.argv[1:]]))
