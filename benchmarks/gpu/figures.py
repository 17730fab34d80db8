"""The figures of a slice, read from what its command has kept."""

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.outcome import LOG, REPORT
from lsgd.bench.timing import Estimate, Samples, estimate

NOT_MEASURED = " is not measured: "
"""What a report of a benchmark says of a candidate that it lacks."""
FROM = "from the step of "
"""What benchmarks.gpu.whole_run says first."""


def speeds(folder: Path) -> dict[str, Estimate]:
    """Images/s of each candidate of the slice with this folder, in the order of its report."""
    measured: Samples = {}
    for file in sorted((folder / REPORT).glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        measured |= result.get("images_per_second", {}) | result.get("loaders", {})
        if "training" in result:
            of_training: Samples = result["training"]["speeds"]
            measured |= {f"training, {name}": found for name, found in of_training.items()}
    return {name: estimate(values) for name, values in measured.items()}


def findings(folder: Path) -> tuple[list[str], list[str]]:
    """What the slice with this folder has decided, and which candidates it lacked, in sentences."""
    lines = [line[2:] for line in _lines(folder / REPORT / "README.md") if line.startswith("- ")]
    lacks = [line for line in lines if NOT_MEASURED in line]
    return [line for line in lines if line not in lacks], lacks


def tests(folder: Path) -> str:
    """How many tests have passed, failed and were skipped; empty without a report of pytest."""
    file = folder / REPORT / "junit.xml"
    if not file.exists():
        return ""
    suites = list(ElementTree.parse(file).iter("testsuite"))
    count = {
        key: sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    }
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    return f"{passed} passed, {failed} failed, {count['skipped']} skipped"


def phases(folder: Path) -> list[str]:
    """The lines of the table of phases, as lsgd.profile has written it."""
    lines = _lines(folder / REPORT / "README.md")
    begin = next((i for i, line in enumerate(lines) if line.startswith("|")), len(lines))
    end = next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))
    return lines[begin:end]


def whole_run(folder: Path) -> list[str]:
    """What was planned, from which step, and what it takes."""
    plan = _lines(folder / REPORT / "plan.md")
    sums = [line for line in plan if line.startswith("**")]
    steps = [line for line in _lines(folder / LOG) if line.startswith(FROM)]
    return [f"{plan[2]}, on one GPU, {steps[-1]}:\n", *sums] if sums and steps else []


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
