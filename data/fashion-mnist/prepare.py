"""`python data/fashion-mnist/prepare.py …` is `python -m lsgd.prepare fashion-mnist …`."""

import sys

from lsgd.prepare.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["fashion-mnist", *sys.argv[1:]]))
