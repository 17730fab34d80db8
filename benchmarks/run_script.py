"""Runner of another project's script: `python -m benchmarks.run_script SCRIPT [ARGUMENT …]`.

It works as `python SCRIPT` does, but imports torchvision first, as lsgd.vision does: with a CPU
build of torch the script's own `import torchvision` would fail.
"""

import runpy
import sys
from pathlib import Path

import lsgd.vision  # noqa: F401


def main(script: str) -> None:
    """Run the script with the arguments that follow it in sys.argv."""
    del sys.argv[0]
    # Python looks for modules in the script's folder first.
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
