"""The README.md of a results folder, composed from its slices' folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import slice_results
from benchmarks.gpu.machine import read_machine
from benchmarks.gpu.outcome import DONE, LOG, is_done, read_outcome, starts
from benchmarks.gpu.slices import Slice
from lsgd.files import atomic_write
from lsgd.tables import markdown_table

LADDER = "ladder"
"""The folder of the report on the ladder, whose runs are trained by several slices."""

NO_GPU = (
    "**Nothing in this folder was measured on a GPU**: it is the command tried in small, on a CPU, "
    "and its figures say nothing.\n"
)


def write_report(folder: Path, slices: Sequence[Slice]) -> None:
    """Write README.md on all benchmark slices, finished or not."""
    with atomic_write(folder / "README.md") as file:
        file.write(f"{compose(folder, slices)}\n".encode())


def compose(folder: Path, slices: Sequence[Slice]) -> str:
    """Return the text of README.md for a results folder."""
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
        *_section("Tests on the GPU", [slice_results.tests(folder / "tests")]),
        *_section("Runs on the GPU beside the CPU's", slice_results.compared_runs(folder / "runs")),
        *_section("Speeds", _speeds(folder, names, machine["gpu"])),
        *_section("Verdicts", _verdicts(folder, names)),
        *_section("Where the time of a step goes", slice_results.phases(folder / "profile")),
        *_section(
            "A whole run, planned by lsgd.plan", slice_results.whole_run(folder / "imagenet")
        ),
        *_section("The ladder", _ladder(folder)),
        *_section("Not measured", _not_measured(folder, slices)),
    ]
    return "\n".join(sections).rstrip()


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """Return a Markdown section's lines with its heading, or no lines if all are empty."""
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
            command, seconds = each.shell_command(own), "–"
        rows.append([each.name, state(own, each), seconds, str(starts(own)), f"`{command}`"])
    return [markdown_table(["slice", "outcome", "seconds", "starts", "command"], rows)]


def state(folder: Path, each: Slice) -> str:
    """Return the state of the benchmark slice with this folder, in a word or two."""
    if outcome := read_outcome(folder):
        return outcome.outcome
    if (folder / LOG).exists():
        return "killed"
    return "skipped" if each.missing_requirement else "not run"


def _speeds(folder: Path, names: Sequence[str], gpu: str | None) -> list[str]:
    rows = []
    for name in names:
        if not is_done(folder / name):
            continue
        bounds = slice_results.bounds(folder / name, gpu)
        for candidate, found in slice_results.speeds(folder / name).items():
            most = bounds.get(candidate)
            share = f"{100 * found.median / most:.0f} % of {most:,.0f}" if most else "–"
            rows.append([name, candidate, found.shown(".0f"), share])
    head = ["slice", "what", "images/s", "of the bound of lsgd.plan bound"]
    return [markdown_table(head, rows)] if rows else []


def _verdicts(folder: Path, names: Sequence[str]) -> list[str]:
    return [
        f"- [{name}]({name}/report/README.md): {line}"
        for name in names
        if is_done(folder / name)
        for line in slice_results.verdicts_and_lacks(folder / name)[0]
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
    return [
        f"[{summary['title']}]({LADDER}/README.md), {whole_ladder}:\n",
        markdown_table(head, rows),
    ]


def _not_measured(folder: Path, slices: Sequence[Slice]) -> list[str]:
    lines = []
    for each in slices:
        own = folder / each.name
        outcome = read_outcome(own)
        if outcome is None or outcome.outcome != DONE:
            why = (outcome.why if outcome else "") or each.missing_requirement
            lines.append(f"- {each.name}: {state(own, each)}{': ' if why else ''}{why}")
        else:
            lines += [f"- {each.name}: {lack}" for lack in slice_results.verdicts_and_lacks(own)[1]]
    return lines
