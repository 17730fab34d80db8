"""The README.md of a folder of figures, written anew from what is there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import figures
from benchmarks.gpu.machine import read_machine
from benchmarks.gpu.outcome import DONE, LOG, is_done, read_outcome, starts
from benchmarks.gpu.slices import Slice
from lsgd.files import whole
from lsgd.tables import markdown

LADDER = "ladder"
"""The folder of the report on the ladder, whose runs several slices have trained."""

NO_GPU = (
    "**Nothing in this folder was measured on a GPU**: it is the command tried in small, on a CPU, "
    "and its figures say nothing.\n"
)


def write_report(folder: Path, slices: Sequence[Slice]) -> None:
    """Write README.md on these slices, which are all there are, whatever has become of them."""
    with whole(folder / "README.md") as file:
        file.write(f"{compose(folder, slices)}\n".encode())


def compose(folder: Path, slices: Sequence[Slice]) -> str:
    """The README.md as text."""
    machine = read_machine(folder)
    names = [each.name for each in slices]
    sections = [
        *([] if machine["gpu"] else [NO_GPU]),
        f"# What lsgd does on one {machine['gpu'] or 'CPU'}\n",
        "**Question.** How fast is a step of ResNet-50 here, beside a loop by hand and the steps "
        "of torchvision's and timm's scripts? What does per-worker BN cost, do the loaders keep "
        "up, and how far does CIFAR-10's ladder hold?\n",
        "**How.** `python -m benchmarks.gpu`, slice by slice: candidates in turn, ratios within "
        "each round, medians with intervals of 95 %. Each slice has its log, its outcome and its "
        "report in a folder here.\n",
        "**Hardware and versions.** " + "  \n".join([*machine["lines"], *_versions(folder, names)]),
        "",
        *_section("Slices", _outcomes(folder, slices)),
        *_section("Tests on the GPU", [figures.tests(folder / "tests")]),
        *_section("Speeds", _speeds(folder, names)),
        *_section("Verdicts", _verdicts(folder, names)),
        *_section("Where the time of a step goes", figures.phases(folder / "profile")),
        *_section("A whole run, planned by lsgd.plan", figures.whole_run(folder / "imagenet")),
        *_section("The ladder", _ladder(folder)),
        *_section("Not measured", _not_measured(folder, slices)),
    ]
    return "\n".join(sections).rstrip()


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """A section, if it has a line."""
    filled = [line for line in lines if line]
    return [f"## {title}\n", *filled, ""] if filled else []


def _versions(folder: Path, names: Sequence[str]) -> list[str]:
    outcomes = [read_outcome(folder / name) for name in names]
    return sorted({outcome.version for outcome in outcomes if outcome})


def _outcomes(folder: Path, slices: Sequence[Slice]) -> list[str]:
    rows = []
    for each in slices:
        own = folder / each.name
        if outcome := read_outcome(own):
            command, seconds = outcome.command, f"{outcome.seconds:.0f}"
        else:
            command, seconds = each.shown(own), "–"
        rows.append([each.name, state(own, each), seconds, str(starts(own)), f"`{command}`"])
    return [markdown(["slice", "outcome", "seconds", "starts", "command"], rows)]


def state(folder: Path, each: Slice) -> str:
    """What has become of the slice with this folder, in a word or two."""
    if outcome := read_outcome(folder):
        return outcome.outcome
    if (folder / LOG).exists():
        return "killed"
    return "skipped" if each.lacks else "not run"


def _speeds(folder: Path, names: Sequence[str]) -> list[str]:
    rows = [
        [name, candidate, found.shown(".0f")]
        for name in names
        if is_done(folder / name)
        for candidate, found in figures.speeds(folder / name).items()
    ]
    return [markdown(["slice", "what", "images/s"], rows)] if rows else []


def _verdicts(folder: Path, names: Sequence[str]) -> list[str]:
    return [
        f"- [{name}]({name}/report/README.md): {line}"
        for name in names
        if is_done(folder / name)
        for line in figures.findings(folder / name)[0]
    ]


def _ladder(folder: Path) -> list[str]:
    file = folder / LADDER / "summary.json"
    if not file.exists():
        return []
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for recipe in summary["recipes"]:
        number = "–" if recipe["mean"] is None else f"{recipe['mean']:.2f}"
        number += f" ± {recipe['std']:.2f}" if recipe["std"] is not None else ""
        rows.append([recipe["label"], number, str(recipe["n"]), str(recipe["diverged"])])
    head = ["run", "error", "seeds", "of which diverged"]
    whole_ladder = f"{summary['runs']} of {summary['runs_asked']} runs"
    return [f"[{summary['title']}]({LADDER}/README.md), {whole_ladder}:\n", markdown(head, rows)]


def _not_measured(folder: Path, slices: Sequence[Slice]) -> list[str]:
    lines = []
    for each in slices:
        own = folder / each.name
        outcome = read_outcome(own)
        if outcome is None or outcome.outcome != DONE:
            why = (outcome.why if outcome else "") or each.lacks
            lines.append(f"- {each.name}: {state(own, each)}{': ' if why else ''}{why}")
        else:
            lines += [f"- {each.name}: {lack}" for lack in figures.findings(own)[1]]
    return lines
