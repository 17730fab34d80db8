"""The table of results in the README, made from the summary.json of every folder of results/."""

import json
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import Refused
from lsgd.report.blocks import printable
from lsgd.report.claims import FAILS, HOLDS, OPEN
from lsgd.report.wording import NONE, count
from lsgd.tables import markdown

BEGIN, END = "<!-- results, by make results -->", "<!-- end of results -->"


def results_table(results: Path) -> str:
    """One row for each recipe of each folder, the newest folder last."""
    rows = [
        row
        for path in sorted(results.glob("*/summary.json"))
        for row in _rows(path.parent, json.loads(path.read_text(encoding="utf-8")))
    ]
    head = ["study", "run", "top-1 error, %", "seeds", "published, %", "verdict"]
    return markdown(head, [list(map(printable, row)) for row in rows])


def with_table(text: str, results: Path) -> str:
    """The README's text with the table as it has to be; raises Refused if the markers are gone."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise Refused(f"the README has no lines {BEGIN} and {END}; write them where the table goes")
    return f"{head}{BEGIN}\n{results_table(results)}\n{END}{tail}"


def write_table(readme: Path) -> None:
    """Bring the table in this README up to date with the results/ beside it."""
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"--table {readme} cannot be read ({error.strerror})") from None
    new = with_table(text, readme.parent / "results")
    with files.whole(readme) as file:
        file.write(new.encode())


def _rows(folder: Path, summary: dict[str, Any]) -> list[list[str]]:
    partial = (
        f", partial: {summary['runs']} of {summary['runs_asked']} runs"
        if summary["partial"]
        else ""
    )
    firsts = [f"[{summary['title']}](results/{folder.name}/README.md){partial}", _verdict(summary)]
    rows: list[list[str]] = []
    for recipe in summary["recipes"]:
        title, verdict = firsts if not rows else ("", "")
        rows.append(
            [title, recipe["label"], _error(recipe), _seeds(recipe), _published(recipe), verdict]
        )
    return rows


def _error(recipe: dict[str, Any]) -> str:
    parts = []
    if recipe["mean"] is not None:
        spread = f" ± {recipe['std']:.2f}" if recipe["std"] is not None else ""
        parts.append(f"{recipe['mean']:.2f}{spread}")
    if recipe["diverged"]:
        parts.append(f"{recipe['diverged']} of {recipe['n']} diverged")
    return ", ".join(parts) or "not run"


def _seeds(recipe: dict[str, Any]) -> str:
    text = f"{recipe['n']}"
    if recipe["repeats"]:
        text += f"; {count(len(recipe['repeats']), 'repeat')}"
    errors = [error for error in recipe["repeats"] if error is not None]
    if errors:
        ends = sorted({f"{min(errors):.2f}", f"{max(errors):.2f}"}, key=float)
        text += f", {' to '.join(ends)}"
    if len(errors) < len(recipe["repeats"]):
        text += f", {len(recipe['repeats']) - len(errors)} diverged"
    return text


def _published(recipe: dict[str, Any]) -> str:
    published = recipe["published"]
    if not published:
        return NONE
    spread = f" ± {published['std']:.2f}" if published["std"] is not None else ""
    return f"{published['top1_error']:.2f}{spread}, {recipe['verdict']}"


def _verdict(summary: dict[str, Any]) -> str:
    outcomes = [claim["outcome"] for claim in summary["claims"]]
    words = {HOLDS: "hold", FAILS: "do not hold", OPEN: "not resolved"}
    counts = ", ".join(f"{outcomes.count(outcome)} {word}" for outcome, word in words.items())
    claims = [f"claims: {counts}"] if outcomes else []
    elbows = [
        f"no minibatch above {elbow['baseline']} is shown to be as good"
        if elbow["batch_size"] == elbow["baseline"]
        else f"elbow: {elbow['batch_size']} ({elbow['steps_per_epoch']} steps per epoch)"
        for elbow in summary["elbows"]
    ]
    decided = "; ".join([*claims, *elbows])
    if decided and any(recipe["diverged"] for recipe in summary["recipes"]):
        decided += " (where a diverged run counts with the error of guessing)"
    return decided or NONE
