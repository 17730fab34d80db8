"""How every figure is drawn with matplotlib: its style, its colours, its SVG and its PNG."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK = "#010203"
"""The colour of lines and letters; in the page they take that of its text."""
GROUND = "#fefdfe"
"""The colour behind a figure; in the page a figure is transparent."""
BLUE, RED, GREY = "#0072b2", "#d55e00", "#8a8a8a"
COLOURS = (BLUE, RED, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which colour-blind readers can tell apart."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure; `svg` and `png` are what its files have in them."""

    name: str
    title: str
    alt: str
    """A description of the figure, for readers who cannot see it."""
    svg: str
    png: bytes

    @property
    def inline(self) -> str:
        """The SVG as part of a page: its ids are its own, its ink is the page's."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        # In HTML an SVG needs no namespaces; without a size it is as wide as its place.
        svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg)
        svg = re.sub(r'<svg (.*?)width="[^"]*"(.*?)height="[^"]*"', r"<svg \1\2", svg, count=1)
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r"url\(#", f"url(#{self.name}-", svg)
        svg = re.sub(r'xlink:href="#', f'href="#{self.name}-', svg)
        return svg.replace(INK, "currentColor").replace(f"fill: {GROUND}", "fill: none")


@contextmanager
def _canvas(name: str, *, height: float = 3.0) -> Iterator[tuple["Canvas", "Axes"]]:
    """An empty figure in our style, small enough for a telephone's screen."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {
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
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": name,  # the same findings make the same file
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=(4.4, height), layout="constrained")
        yield canvas, canvas.add_subplot()


def drawn(
    name: str, title: str, alt: str, plot: Callable[["Axes"], None], height: float = 3.0
) -> Figure:
    """The figure that `plot` makes of empty axes; `height` in inches, at a width of 4.4."""
    with _canvas(name, height=height) as (canvas, axes):
        plot(axes)
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=220)
    return Figure(name, title, alt, svg.getvalue(), png.getvalue())
