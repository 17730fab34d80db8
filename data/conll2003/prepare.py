"""`python data/conll2003/prepare.py …` is `python -m lsgd.prepare conll2003 …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["conll2003", *sys.argv[1:]]))
