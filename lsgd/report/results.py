"""The table of results/README.md in a checkout, from the summary.json of every folder beside it."""

import json
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import Refused
from lsgd.report.blocks import printable
from lsgd.report.claims import FAILS, HOLDS, OPEN
from lsgd.report.wording import NONE, count
from lsgd.rules.metric import TOP1, Metric, named_metric
from lsgd.tables import markdown

BEGIN, END = "<!-- results, by make results -->", "<!-- end of results -->"


def results_table(results: Path) -> str:
    """A table for each metric, with one row for each recipe of each folder, the newest last."""
    rows: dict[Metric, list[list[str]]] = {}
    for path in sorted(results.glob("*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        metric = named_metric(summary.get("metric", TOP1.name))
        rows.setdefault(metric, []).extend(_rows(path.parent, summary, metric))
    return "\n\n".join(_table(metric, rows.get(metric, [])) for metric in rows or [TOP1])


def _table(metric: Metric, rows: list[list[str]]) -> str:
    number, published = metric.heading(metric.words), metric.heading("published")
    head = ["study", "run", number, "seeds", published, "verdict"]
    return markdown(head, [list(map(printable, row)) for row in rows])


def with_table(text: str, results: Path) -> str:
    """The page's text with the table as it has to be; raises Refused if the markers are gone."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise Refused(f"the page has no lines {BEGIN} and {END}; write them where the table goes")
    return f"{head}{BEGIN}\n{results_table(results)}\n{END}{tail}"


def write_table(page: Path) -> None:
    """Bring the table in this page up to date with the folders of results beside it."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"--table {page} cannot be read ({error.strerror})") from None
    new = with_table(text, page.parent)
    with files.whole(page) as file:
        file.write(new.encode())


def _rows(folder: Path, summary: dict[str, Any], metric: Metric) -> list[list[str]]:
    partial = (
        f", partial: {summary['runs']} of {summary['runs_asked']} runs"
        if summary["partial"]
        else ""
    )
    firsts = [
        f"[{summary['title']}]({folder.name}/README.md){partial}",
        _verdict(summary, metric),
    ]
    rows: list[list[str]] = []
    for recipe in summary["recipes"]:
        title, verdict = firsts if not rows else ("", "")
        published = _published(recipe, metric)
        rows.append([title, recipe["label"], _number(recipe), _seeds(recipe), published, verdict])
    return rows


def _number(recipe: dict[str, Any]) -> str:
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
    numbers = [number for number in recipe["repeats"] if number is not None]
    if numbers:
        ends = sorted({f"{min(numbers):.2f}", f"{max(numbers):.2f}"}, key=float)
        text += f", {' to '.join(ends)}"
    if len(numbers) < len(recipe["repeats"]):
        text += f", {len(recipe['repeats']) - len(numbers)} diverged"
    return text


def _published(recipe: dict[str, Any], metric: Metric) -> str:
    published = recipe["published"]
    if not published:
        return NONE
    spread = f" ± {published['std']:.2f}" if published["std"] is not None else ""
    return f"{published[metric.name]:.2f}{spread}, {recipe['verdict']}"


def _verdict(summary: dict[str, Any], metric: Metric) -> str:
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
        decided += f" (where a diverged run counts with {metric.of_failed})"
    return decided or NONE
