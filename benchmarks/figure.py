"""Matplotlib figures of a report, as the content of image files."""

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING

from lsgd.bench.results import BenchmarkRecord
from lsgd.bench.setting import Result
from lsgd.bench.timing import Estimate
from lsgd.files import write_files
from lsgd.installation import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def files(figure: "Figure", name: str) -> dict[str, bytes]:
    """Return NAME.png and NAME.svg by file name, with the same bytes for the same figure."""
    from matplotlib import rc_context

    content = {}
    for form in ("png", "svg"):
        file = BytesIO()
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        content[f"{name}.{form}"] = file.getvalue()
    return content


def error_bars(values: Iterable[Estimate]) -> list[list[float]]:
    """Return how far the intervals of estimates extend below and above, as matplotlib takes it."""
    pairs = [(value.median - value.low, value.high - value.median) for value in values]
    return [list(side) for side in zip(*pairs, strict=True)]


def write_figure(
    record: BenchmarkRecord, result: Result, draw: Callable[[Result], dict[str, bytes]]
) -> None:
    """Write the files that `draw` returns for a result into its record's folder, if it has one.

    Without matplotlib, `missing` of the result says so.
    """
    try:
        contents = draw(result)
    except ImportError:
        result["missing"]["the figure"] = f"matplotlib is missing: {install_command('report')}"
        return
    if record.folder:
        write_files(record.folder, contents)
