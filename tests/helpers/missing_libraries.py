"""A simulation of an environment in which some libraries are not installed."""

import subprocess
import sys
from collections.abc import Sequence

HIDING = """
import runpy, sys
from importlib.abc import MetaPathFinder

class Hiding(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HIDDEN, sys.argv = set(sys.argv[1].split(",")), sys.argv[2:]
sys.meta_path.insert(0, Hiding())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run_without(
    libraries: Sequence[str], module: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS…` in a process that cannot import these libraries."""
    command = [sys.executable, "-c", HIDING, ",".join(libraries), module, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)
