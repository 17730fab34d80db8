"""The drawing of all figures with matplotlib: style, colours, SVG and PNG."""

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgd.sanitizing import sanitize_for_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK = "#010203"
"""The colour of lines and letters, which the HTML page replaces by its text colour."""
GROUND = "#fefdfe"
"""The colour behind a figure, which the HTML page makes transparent."""
BLUE, RED, GREY = "#0072b2", "#d55e00", "#8a8a8a"
COLOURS = (BLUE, RED, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure of a report, with the contents of its SVG and PNG files."""

    name: str
    title: str
    alt: str
    """A description of the figure, for readers who cannot see it."""
    svg: str
    png: bytes

    @property
    def inline(self) -> str:
        """The figure's SVG for embedding in HTML, with unique ids and the page's text colour."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        # In HTML an SVG needs no namespaces; without a size it takes the width of its container.
        svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg)
        svg = re.sub(r'<svg (.*?)width="[^"]*"(.*?)height="[^"]*"', r"<svg \1\2", svg, count=1)
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r"url\(#", f"url(#{self.name}-", svg)
        svg = re.sub(r'xlink:href="#', f'href="#{self.name}-', svg)
        return svg.replace(INK, "currentColor").replace(f"fill: {GROUND}", "fill: none")


STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "figure.facecolor": GROUND,
    "axes.facecolor": "none",
    "savefig.facecolor": GROUND,
    "svg.fonttype": "none",  # keep text as text
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
"""The settings of matplotlib for all figures of a report."""


def file_names(names: Sequence[str]) -> list[str]:
    """Convert names to distinct file names, dashes for other characters, numbers for equals.

    A drive may not distinguish upper and lower case.

    >>> file_names(["digits", "a+b", "a-b", "A-B-2"])
    ['digits', 'a-b-2', 'a-b-3', 'A-B-2-4']
    """
    replaced = [re.sub(r"[^\w.-]", "-", name, flags=re.ASCII) for name in names]
    counts = Counter(map(str.lower, replaced))
    found: list[str] = []
    for number, name in enumerate(replaced, 1):
        is_taken = counts[name.lower()] > 1
        while is_taken or name.lower() in map(str.lower, found):
            name, is_taken = f"{name}-{number}", False
        found.append(name)
    return found


def draw_figure(
    name: str, title: str, alt: str, plot: Callable[["Axes"], None], height: float = 3.0
) -> Figure:
    """Draw a figure as SVG and PNG by calling `plot` on empty axes; `height` is in inches.

    The width is 4.4 inches. `name` is made one of files, as by `file_names`.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    [name] = file_names([name])
    style = STYLE | {"svg.hashsalt": name}  # equal findings make equal files
    # The axis margin overflows for numbers near the largest float.
    with matplotlib.rc_context(style), np.errstate(over="ignore"):
        canvas = Canvas(figsize=(4.4, height), layout="constrained")
        plot(canvas.add_subplot())
        _take_literally(canvas)
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=220)
    return Figure(name, title, alt, svg.getvalue(), png.getvalue())


def _take_literally(canvas: "Canvas") -> None:
    """Keep matplotlib from parsing dollar signs in labels as formulas, and drop control characters.

    SVG allows no control characters.
    """
    legends = [*canvas.legends, *(legend for axes in canvas.axes if (legend := axes.get_legend()))]
    labels = [text for legend in legends for text in legend.get_texts()]
    for axes in canvas.axes:
        labels += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    for label in labels:
        label.set_parse_math(False)
        label.set_text(sanitize_for_page(label.get_text()))
