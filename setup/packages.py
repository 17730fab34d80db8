"""Install lsgd with some of its extras for the Python that runs this, in this checkout.

    .venv/bin/python setup/packages.py [EXTRAS]

EXTRAS are such as horovod,report; without any it only checks that CPU=yes can be had. With CPU=yes
in the environment torch comes from CPU_INDEX, PyTorch's index of CPU builds, unless pip is
configured to look elsewhere than at PyPI.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PLACES = ("index-url", "extra-index-url", "find-links", "no-index")
"""Settings of pip that decide where packages come from."""
# Measured on Linux x86_64 with the pins of constraints.txt: torch, torchvision and what they need.
CUDA_SIZE = "2.8 GB to download and 5.1 GB on the disk"
CPU_SIZE = "0.3 and 0.9 GB"

# pip says "Requirement already satisfied" of each package that is there, and what it has against
# that, --quiet, also hides how far a download is.
PIP = """
import logging, runpy
import pip._internal  # which makes the class of pip's loggers

log = logging.getLogger("pip._internal.operations.prepare")
log.addFilter(lambda record: not record.getMessage().startswith("Requirement already"))
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def say(sentence: str) -> None:
    """Print the sentence to stderr, before all that a child prints next."""
    print(f"lsgd: {sentence}", file=sys.stderr, flush=True)


def cuda_of_torch() -> str | None:
    """Return the CUDA release of the torch that is installed: none of a CPU build, None of none."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version = Path(spec.submodule_search_locations[0], "version.py").read_text("utf-8")
    found = re.search(r"^cuda\b.*= '(.+)'", version, re.MULTILINE)
    return found[1] if found else "none"


def configured_places() -> list[str]:
    """Return the names of the settings by which pip looks elsewhere than at PyPI.

    Their values may have a password in them.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    names = [line.partition("=")[0] for line in listed.splitlines()]
    sections = ("global.", "install.", ":env:.")
    found = {each.rpartition(".")[2] for each in names if each.startswith(sections)}
    return [each for each in PLACES if each in found]


def places_of_torch(cpu: bool, torch: str | None) -> list[str]:
    """Return pip's options for where torch comes from, and say what is large or left alone."""
    if torch is not None:
        return []
    asked = os.environ.get("CPU_INDEX")
    places = configured_places()
    if cpu and places and not asked:
        say(
            f"pip's configuration has {' and '.join(places)} ('pip config list'), which decides "
            f"where torch comes from; CPU_INDEX={CPU_INDEX} with CPU=yes adds PyTorch's CPU builds."
        )
    elif cpu:
        return ["--extra-index-url", asked or CPU_INDEX]
    elif not places and sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        say(
            f"torch comes from PyPI, as a CUDA build: {CUDA_SIZE}, with CUDA's libraries. "
            f"CPU=yes, as in 'make train CPU=yes', takes the CPU build: {CPU_SIZE}."
        )
    return []


def main(extras: Sequence[str]) -> int:
    """Install, and return the exit status."""
    cpu = os.environ.get("CPU") == "yes"
    torch = cuda_of_torch()
    if cpu and torch not in (None, "none"):
        say(
            f"CPU=yes needs an environment without a CUDA build of torch, and .venv has one (CUDA "
            f"{torch}); 'rm -rf .venv' first, or leave CPU=yes out."
        )
        return 1
    if not extras:
        return 0
    command = [sys.executable, "-c", PIP, "install", "--disable-pip-version-check"]
    command += ["-c", "constraints.txt", *places_of_torch(cpu, torch), "-e", f".[{extras[0]}]"]
    # No pip installs for a user into an environment that does not see the user's packages.
    code = subprocess.run(command, cwd=ROOT, env=os.environ | {"PIP_USER": "0"}).returncode
    if code < 0:
        say(f"pip was ended by signal {-code}; the same command goes on.")
    elif code > 0:
        say("pip could not install the packages (see its message above); the same command goes on.")
    return min(abs(code), 1)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("interrupted; the same command goes on.")
        sys.exit(130)
