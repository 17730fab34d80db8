"""Print what a script that compiles asks of a Python, one fact a line.

    python facts.py PACKAGE MODULE

PACKAGE is what will be compiled for the torch of this Python, and MODULE the part of it that only a
compiled one has. Exit status 3 means that a sentence on stderr says why there are no facts.
"""

import json
import platform
import re
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

# This checkout's, which imports only what Python has, since lsgd may not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from lsgd.job.system import count_usable_cores, memory_limit

del sys.path[0]

PACKAGE, MODULE = sys.argv[1:]


def installed() -> str:
    """Return which folder of the wheel cache PACKAGE came from, or other, stranger or none."""
    try:  # pip notes which file a package came from; ours lies in a folder named by its key
        origin = metadata.distribution(PACKAGE).read_text("direct_url.json") or "{}"
        folder = Path(unquote(json.loads(origin).get("url", ""))).parent
        if folder.parent.match("lsgd/wheels"):
            return folder.name
        return "other" if find_spec(MODULE) else "stranger"
    except metadata.PackageNotFoundError:
        return "other" if find_spec(MODULE) else "stranger" if find_spec(PACKAGE) else "none"


try:
    import torch
except Exception as error:  # also an OSError, where a library of CUDA is missing
    problem = (str(error).splitlines() or [type(error).__name__])[-1]
    print(
        f"{PACKAGE}: {sys.executable} has no torch to build {PACKAGE} for ({problem}); "
        "run 'make setup', or install torch there first.",
        file=sys.stderr,
    )
    sys.exit(3)

try:
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    devices = {f"{major}.{minor}" for major, minor in capabilities}
except RuntimeError as error:
    problem = str(error).splitlines()[0]
    print(f"{PACKAGE}: torch cannot use the GPU here ({problem}).", file=sys.stderr)
    devices = set()

root = Path(torch.__path__[0])
standard = re.search(r"C\+\+(\d\d) or later", (root / "include/ATen/ATen.h").read_text("utf-8"))
print(sys.executable)
print(torch.__version__)
print(torch.version.cuda or "none")
print(standard[1] if standard else 17)
print(f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}")
print(";".join(sorted(devices)) or "none")
print(root.parent)
print(Path(sysconfig.get_path("include")) / "Python.h")
# A job or container is often given less than the machine has, and a compiler takes up to 2 GB here.
print(max(1, min(count_usable_cores(), memory_limit() // 2_000_000_000)))
print(installed())
