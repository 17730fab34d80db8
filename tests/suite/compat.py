"""The short tests on the oldest and on the newest torch that pyproject.toml admits: `make compat`.

    .venv/bin/python tests/suite/compat.py [PYTEST'S ARGUMENTS]

Each torch gets an environment of its own in the user's cache, made once, with the torchvision and
setuptools that fit it and the rest as in constraints.txt. DALI, Horovod, Ray and Spark are not in
it, so tests of them are skipped. Builds come from where pip looks for them: PyPI's are large, of
CUDA, and run on a CPU too; PIP_INDEX_URL and PIP_EXTRA_INDEX_URL name another index.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.environment import ensure_environment
from lsgd.errors import UsageError
from lsgd.job.children import describe_failure, run_with_limit
from lsgd.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("dev", "horovod", "imagenet", "report", "search")
BY_RANGE = ("setuptools", "torchvision")
"""What each torch needs in versions of its own."""
FROM_SOURCE = "--no-binary=antlr4-python3-runtime"
"""Hydra needs it, and it is there as source alone, which is Python and is not compiled."""
SIZE = "up to 7 GB"
LIMIT = 300.0
"""Seconds that pip may take to find a version."""
HEAD = ["torch", "torchvision", "passed", "failed", "skipped", "seconds", "outcome"]


def admitted() -> list[str]:
    """Every requirement of lsgd and of its tests, as pyproject.toml has it, torch first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    both = {Requirement(each).name: each for each in [*extras, *project["dependencies"]]}
    return sorted(both.values(), key=lambda each: Requirement(each).name != "torch")


def ends(torch: str) -> list[str]:
    """What asks pip for the oldest and for the newest version of a range.

    >>> ends("torch>=2.11,<2.16")
    ['torch==2.11', 'torch>=2.11,<2.16']
    """
    (oldest,) = [each.version for each in Requirement(torch).specifier if each.operator == ">="]
    return [f"torch=={oldest}", torch]


def requirements(torch: str) -> list[str]:
    """What is installed beside this version of torch: what is pinned, but BY_RANGE by its range.

    Of those pip takes the newest that fits this torch.
    """
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line for line in lines}
    beside = [
        each if name in BY_RANGE else pins[name]
        for each in admitted()[1:]
        for name in [canonicalize_name(Requirement(each).name)]
    ]
    return [f"torch=={torch}", *beside, FROM_SOURCE]


def version(requirement: str) -> str:
    """The version that pip would install, such as 2.11.0+cpu; raises UsageError if none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        command += ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
        code, text = run_with_limit([*command, "--report", str(report), requirement], limit=LIMIT)
        if code != 0:
            raise UsageError(f"pip finds no {requirement}: {describe_failure(code, text, LIMIT)}")
        return str(json.loads(report.read_text())["install"][0]["metadata"]["version"])


def row(python: Path, arguments: Sequence[str]) -> list[str]:
    """The row of an environment whose Python has run pytest with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = subprocess.run(
            [python, "-m", "pytest", f"--junit-xml={report}", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},  # lsgd is not installed there
        ).returncode
        suite = next(ElementTree.parse(report).iter("testsuite")) if report.is_file() else None
    names = "import importlib.metadata as m; print(m.version('torch'), m.version('torchvision'))"
    found = subprocess.run([python, "-c", names], capture_output=True, text=True).stdout.split()
    outcome = "passed" if code == 0 else f"failed: pytest ended with {code}"
    if suite is None:
        return [*found, "–", "–", "–", "–", outcome]
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    passed = int(suite.attrib["tests"]) - failed - skipped
    seconds = f"{float(suite.attrib['time']):.0f}"
    return [*found, str(passed), str(failed), str(skipped), seconds, outcome]


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each torch, one after the other; returns the exit code, 1 if any failed."""
    rows = []
    for asked in ends(admitted()[0]):
        try:
            wanted = requirements(torch := version(asked))
            python = ensure_environment(f"torch-{torch}", wanted, size=SIZE)
            rows.append(row(python, arguments))
        except UsageError as error:
            print(error, flush=True)
            rows.append([asked, "–", "–", "–", "–", "–", "failed: not installed"])
    print(markdown_table(HEAD, rows))
    return int(any(each[-1] != "passed" for each in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
