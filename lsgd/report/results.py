"""The table of results/README.md in a checkout, from the summary.json of each folder beside it."""

from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import UsageError
from lsgd.report.claims import FAILS, HOLDS, OPEN
from lsgd.report.formatting import NONE
from lsgd.rules.metric import TOP1, Metric, format_decimal, metric_by_name
from lsgd.sanitizing import sanitize_for_page
from lsgd.tables import escape_markdown, format_count, markdown_table
from lsgd.untrusted_files import parse_json, read_bounded

BEGIN, END = "<!-- results, by make results -->", "<!-- end of results -->"


def results_table(results: Path) -> str:
    """Return Markdown tables of the results below a folder, one table for each metric.

    A table has a row for each recipe, ordered by the name of its result folder.
    """
    rows: dict[Metric, list[list[str]]] = {}
    for path in sorted(results.glob("[!.]*/summary.json")):
        try:
            summary = parse_json(read_bounded(path))
            metric = metric_by_name(summary.get("metric", TOP1.name))
            rows.setdefault(metric, []).extend(_rows(path.parent, summary, metric))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} is not a summary of a report ({error}); fix or remove it"
            ) from None
    return "\n\n".join(_table(metric, rows.get(metric, [])) for metric in rows or [TOP1])


def _table(metric: Metric, rows: list[list[str]]) -> str:
    number, published = metric.axis_label(metric.label), metric.axis_label("published")
    head = ["study", "run", number, "seeds", published, "verdict"]
    return markdown_table(head, [list(map(sanitize_for_page, row)) for row in rows])


def with_table(text: str, results: Path) -> str:
    """Replace the results table between the markers of a page's text, and return the text.

    Raises UsageError if the markers are missing.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(
            f"the page has no lines {BEGIN} and {END}; write them at the place of the table"
        )
    return f"{head}{BEGIN}\n{results_table(results)}\n{END}{tail}"


def write_table(page: Path) -> None:
    """Update the results table in this Markdown page from the result folders beside it."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--table {page} cannot be read ({error.strerror})") from None
    new = with_table(text, page.parent)
    with files.atomic_write(page) as file:
        file.write(new.encode())


def _rows(folder: Path, summary: dict[str, Any], metric: Metric) -> list[list[str]]:
    """Return the rows of the results table for one result folder, one for each recipe."""
    partial = (
        f", partial: {summary['runs']} of {summary['runs_asked']} runs"
        if summary["partial"]
        else ""
    )
    firsts = [
        f"[{escape_markdown(summary['title'])}]({folder.name}/README.md){partial}",
        _verdict(summary, metric),
    ]
    rows: list[list[str]] = []
    for recipe in summary["recipes"]:
        title, verdict = firsts if not rows else ("", "")
        published = _published(recipe, metric)
        label = escape_markdown(recipe["label"])
        number, seeds = _number(recipe, metric), _seeds(recipe, metric)
        rows.append([title, label, number, seeds, published, verdict])
    return rows


def _number(recipe: dict[str, Any], metric: Metric) -> str:
    """Format a recipe's mean metric, and count runs that diverged or missed the target."""
    parts = []
    if recipe["mean"] is not None:
        parts.append(_mean_and_std(recipe["mean"], recipe["std"], metric))
    counted = recipe["n"] + (len(recipe["repeats"]) if recipe.get("counts_repeats") else 0)
    if recipe["diverged"]:
        parts.append(f"{recipe['diverged']} of {counted} diverged")
    # Older summaries have no such count.
    without = sum(number is None for number in recipe["errors"].values())
    if never := recipe.get("never", without - recipe["diverged"]):
        parts.append(f"{never} of {counted} never")
    return ", ".join(parts) or "not run"


def _mean_and_std(mean: float, std: float | None, metric: Metric) -> str:
    """Format a mean of the metric with its standard deviation, if known, without the unit."""
    decimals = metric.decimals(mean)
    spread = f" ± {format_decimal(std, decimals)}" if std is not None else ""
    return f"{format_decimal(mean, decimals)}{spread}"


def _seeds(recipe: dict[str, Any], metric: Metric) -> str:
    """Format a recipe's number of seeds, with the number and the range of its repeats."""
    text = f"{recipe['n']}"
    if recipe["repeats"]:
        text += f"; {format_count(len(recipe['repeats']), 'repeat')}"
    numbers = [number for number in recipe["repeats"] if number is not None]
    if numbers:
        ends = sorted(
            {format_decimal(each, metric.decimals(each)) for each in (min(numbers), max(numbers))},
            key=float,
        )
        text += f", {' to '.join(ends)}"
    # Summaries without such a repeat have no such count.
    never = recipe.get("repeats_never", 0)
    if diverged := len(recipe["repeats"]) - len(numbers) - never:
        text += f", {diverged} diverged"
    return text + (f", {never} never" if never else "")


def _published(recipe: dict[str, Any], metric: Metric) -> str:
    """Format a recipe's published number and the verdict on it as text."""
    published = recipe["published"]
    if not published:
        return NONE
    number = _mean_and_std(published[metric.name], published["std"], metric)
    return f"{number}, {recipe['verdict']}"


def _verdict(summary: dict[str, Any], metric: Metric) -> str:
    """Format the outcomes of a study's claims and its minibatch elbows as text."""
    outcomes = [claim["outcome"] for claim in summary["claims"]]
    phrases = {HOLDS: "hold", FAILS: "do not hold", OPEN: "not resolved"}
    counts = ", ".join(f"{outcomes.count(outcome)} {word}" for outcome, word in phrases.items())
    claims = [f"claims: {counts}"] if outcomes else []
    elbows = [
        f"no minibatch above {elbow['baseline']} is shown to be as good"
        if elbow["batch_size"] == elbow["baseline"]
        else f"elbow: {elbow['batch_size']} ({elbow['steps_per_epoch']} steps per epoch)"
        for elbow in summary["elbows"]
    ]
    decided = "; ".join([*claims, *elbows])
    if decided and any(recipe["diverged"] for recipe in summary["recipes"]):
        counts = f"counts with {metric.failed_label}" if metric.counts_failed else "is left out"
        decided += f" (where a diverged run {counts})"
    return decided or NONE
