"""Basic shapes of the drawings, as SVG in the light or dark colours of the reader's browser."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

WIDTH = 700
"""The width of a drawing; a telephone shows it at half size, and the letters of 18 at size 9."""
SIZES = {"head": 22, "text": 20, "small": 18, "code": 18}
"""The letter heights by kind of text."""
CODE_LETTER = 11.1
"""The width of a letter of code, in the widest of the usual fonts."""
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace"
STYLES = {
    "text": f"font-family:{SANS};font-size:20px",
    ".head": "font-size:22px;font-weight:600",
    ".small": "font-size:18px",
    ".code": f"font-size:18px;font-family:{MONO}",
    ".line,.arrow,.dashed,.frame": "fill:none;stroke-width:1.5",
    ".dashed,.frame": "stroke-dasharray:5 4",
}
LIGHT = {
    "svg": "background:#ffffff",
    "text": "fill:#1c2733",
    ".small": "fill:#44515e",
    ".line,.arrow,.dashed,.frame": "stroke:#5c6f82",
    ".tip": "fill:#5c6f82",
    ".plain": "fill:#eef3f8;stroke:#8aa0b5",
    ".green": "fill:#dcebe0;stroke:#6f9a7d",
    ".amber": "fill:#fdf1dc;stroke:#c9a25b",
}
DARK = {
    "svg": "background:#14181f",
    "text": "fill:#e4eaf0",
    ".small": "fill:#b3c0cc",
    ".line,.arrow,.dashed,.frame": "stroke:#8fa1b3",
    ".tip": "fill:#8fa1b3",
    ".plain": "fill:#222d39;stroke:#6d8299",
    ".green": "fill:#1e3427;stroke:#5f9a74",
    ".amber": "fill:#3b3019;stroke:#b98f45",
}


class Drawing:
    """A drawing that grows downwards, with coordinates from the upper left corner.

    The title and the description are for readers who cannot see it.
    """

    def __init__(self, name: str, title: str, description: str) -> None:
        self.name, self.title, self.description = name, title, description
        self.shapes: list[str] = []

    def text(
        self, x: float, y: float, content: str, kind: str = "text", at: str = "middle"
    ) -> None:
        """Add a line of text at the height y, with its middle, start or end at x."""
        place = f'x="{_short(x)}" y="{_short(y + 0.35 * SIZES[kind])}" text-anchor="{at}"'
        named = "" if kind == "text" else f' class="{kind}"'
        self.shapes.append(f"<text {place}{named}>{escape(content, quote=False)}</text>")

    def box(self, x: float, y: float, width: float, height: float, kind: str = "plain") -> None:
        """Add a box with round corners, whose upper left corner is (x, y)."""
        numbers = zip(("x", "y", "width", "height"), (x, y, width, height), strict=True)
        place = " ".join(f'{key}="{_short(value)}"' for key, value in numbers)
        self.shapes.append(f'<rect {place} rx="6" class="{kind}"/>')

    def disc(self, x: float, y: float, radius: float, kind: str = "plain") -> None:
        """Add a disc with its middle at (x, y)."""
        place = f'cx="{_short(x)}" cy="{_short(y)}" r="{_short(radius)}"'
        self.shapes.append(f'<circle {place} class="{kind}"/>')

    def line(
        self, begin: tuple[float, float], end: tuple[float, float], kind: str = "line"
    ) -> None:
        """Add a line; the kinds `arrow` and `dashed` have an arrowhead at the end."""
        (x, y), (to_x, to_y) = begin, end
        tip = "" if kind == "line" else f' marker-end="url(#{self.name}-tip)"'
        way = f"M{_short(x)} {_short(y)} L{_short(to_x)} {_short(to_y)}"
        self.shapes.append(f'<path d="{way}" class="{kind}"{tip}/>')

    def svg(self, height: float) -> str:
        """Return the SVG file of the drawing, cut at this height."""
        size = f'viewBox="0 0 {WIDTH} {_short(height)}" width="{WIDTH}" height="{_short(height)}"'
        named = f'role="img" aria-labelledby="{self.name}-title {self.name}-about"'
        dark = "".join(f"{rule}\n" for rule in _rules(DARK))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} {named}>',
                f'<title id="{self.name}-title">{escape(self.title, quote=False)}</title>',
                f'<desc id="{self.name}-about">{escape(self.description, quote=False)}</desc>',
                "<style>",
                *_rules(STYLES),
                *_rules(LIGHT),
                f"@media (prefers-color-scheme:dark){{\n{dark}}}",
                "</style>",
                f'<defs><marker id="{self.name}-tip" viewBox="0 0 8 8" refX="7" refY="4" '
                'markerWidth="7" markerHeight="7" orient="auto">'
                '<path d="M0 0 L8 4 L0 8 z" class="tip"/></marker></defs>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def write(name: str, svg: str) -> None:
    """Write a drawing beside its module, and print its path."""
    path = Path(__file__).with_name(f"{name}.svg")
    path.write_text(svg, encoding="utf-8")
    print(path)


def _rules(styles: dict[str, str]) -> Iterable[str]:
    return (f"{selector}{{{rule}}}" for selector, rule in styles.items())


def _short(number: float) -> str:
    """Format a number to a tenth of a pixel, the same on every machine."""
    return f"{round(number, 1):g}"
