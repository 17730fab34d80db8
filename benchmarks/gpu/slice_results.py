"""The results of a benchmark slice, read from the files that its command has saved."""

import json
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.outcome import LOG, REPORT
from lsgd.bench.timing import Estimate, Samples, estimate
from lsgd.config import load_recipe

NOT_MEASURED = " is not measured: "
"""The phrase with which a benchmark's report names a candidate that it lacks."""
FROM = "from the step of "
"""The beginning of the line that benchmarks.gpu.whole_run prints first."""


def speeds(folder: Path) -> dict[str, Estimate]:
    """Return the images/s of each candidate in a slice's folder, in the order of its report."""
    measured: Samples = {}
    for file in sorted((folder / REPORT).glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        measured |= result.get("images_per_second", {}) | result.get("loaders", {})
        if "training" in result:
            of_training: Samples = result["training"]["speeds"]
            measured |= {f"training, {name}": found for name, found in of_training.items()}
    return {name: estimate(values) for name, values in measured.items()}


def bounds(folder: Path, gpu: str | None) -> dict[str, float]:
    """Return the upper bound of the images/s on this GPU for each candidate of a slice.

    Empty for a GPU or a step that lsgd.plan does not know.
    """
    found: dict[str, float] = {}
    for file in sorted((folder / REPORT).glob("*.json")) if gpu else ():
        result = json.loads(file.read_text(encoding="utf-8"))
        fields = ("recipe", "workers", "worker_batch", "workers_per_pass", "precision", "compile")
        if gpu and {"images_per_second", "image_size", *fields} <= result.keys():
            own = (result[field] for field in fields)
            if most := _bound(gpu, result["image_size"], *own):
                found |= dict.fromkeys(result["images_per_second"], most)
    return found


@cache
def _bound(
    gpu: str,
    image_size: int,
    recipe: str,
    workers: int,
    worker_batch: int,
    workers_per_pass: int,
    precision: str,
    compiled: bool,
) -> float | None:
    # The imports are here, since a process that only starts slices does not need torch.
    from lsgd.job.gpus import GPUS
    from lsgd.plan.bound import step_time_bound
    from lsgd.profile.traffic import count_traffic

    known = next((each for each in GPUS if each.name.split()[0] in gpu), None)
    if known is None:
        return None
    overrides = [f"+recipe={recipe}", f"workers={workers}", f"worker_batch={worker_batch}"]
    overrides += [f"data.image_size={image_size}", f"precision={precision}"]
    step = count_traffic(load_recipe(overrides), workers_per_pass)
    return step.examples / step_time_bound(step.fused if compiled else step.eager, known).seconds


def verdicts_and_lacks(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sentences of a benchmark's report: its verdicts, and the candidates it lacks."""
    lines = [line[2:] for line in _lines(folder / REPORT / "README.md") if line.startswith("- ")]
    lacks = [line for line in lines if NOT_MEASURED in line]
    return [line for line in lines if line not in lacks], lacks


def tests(folder: Path) -> str:
    """Return the numbers of passed, failed and skipped tests; empty without a report of pytest."""
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
    """Return the lines of the table of phases that lsgd.profile has written."""
    return _table(folder / REPORT / "README.md")


def compared_runs(folder: Path) -> list[str]:
    """Return the verdict and the table of tests/accelerator/on_gpu.py."""
    file = folder / REPORT / "README.md"
    verdicts = [f"{line[2:]}\n" for line in _lines(file) if line.startswith("- ")]
    return [*verdicts, *_table(file)]


def _table(file: Path) -> list[str]:
    """Return the lines of the first table in a Markdown file."""
    lines = _lines(file)
    begin = next((i for i, line in enumerate(lines) if line.startswith("|")), len(lines))
    end = next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))
    return lines[begin:end]


def whole_run(folder: Path) -> list[str]:
    """Return the lines on the planned run: the step it starts from, and the plan's totals."""
    plan = _lines(folder / REPORT / "plan.md")
    sums = [line for line in plan if line.startswith("**")]
    steps = [line for line in _lines(folder / LOG) if line.startswith(FROM)]
    return [f"{plan[2]}, on one GPU, {steps[-1]}:\n", *sums] if sums and steps else []


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
