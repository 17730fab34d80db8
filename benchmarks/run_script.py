"""Runs another project's script as it is: `python -m benchmarks.run_script SCRIPT [words …]`.

As `python SCRIPT` does, but torchvision is imported before, as lsgd.vision does it: beside a CPU
build of torch the script's own `import torchvision` would fail.
"""

import runpy
import sys
from pathlib import Path

import lsgd.vision  # noqa: F401


def main(script: str) -> None:
    """Run the script by the words that follow it in sys.argv."""
    del sys.argv[0]
    # Where Python looks for modules first: the folder of the script.
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
