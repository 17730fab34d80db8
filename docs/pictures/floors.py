"""Drawing of the import layers in lsgd's import contracts: `python -m docs.pictures.floors`."""

import re
import tomllib
from pathlib import Path
from typing import Any

from docs.pictures.svg import CODE_LETTER, WIDTH, Drawing, write

NAME = "floors"
ROOT = Path(__file__).resolve().parents[2]
EDGE, PAD, GAP, LINE = 10, 8, 20, 26
"""The drawing's margin, a layer's padding, the gap between names and the height of a line."""
HALF = (WIDTH - 3 * EDGE) / 2
"""The width of a package whose inner layers are shown."""
PAGE = "train"
"""The module to read first."""


def contracts() -> dict[str, list[str]]:
    """Return the layers of each package from the top down, as in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    kept: list[dict[str, Any]] = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    layered = [each for each in kept if each["type"] == "layers"]
    return {package: each["layers"] for each in layered for package in each["containers"]}


def modules(layer: str) -> list[str]:
    """Return the modules of a layer.

    >>> modules("(check) | report : run")
    ['check', 'report', 'run']
    """
    return re.findall(r"\w+", layer)


def draw() -> str:
    """Return the drawing as SVG: lsgd's layers, and below them those inside each package."""
    house, *packages = contracts().items()
    drawing = Drawing(
        NAME,
        "The layers of lsgd",
        f"{_told(*house)} Inside its packages: {' '.join(_told(*each) for each in packages)}",
    )
    drawing.text(EDGE, 24, "lsgd/", "head", "start")
    drawing.text(WIDTH - EDGE, 24, "a file imports only from lower layers", "small", "end")
    bottom = _draw_floors(drawing, *house, EDGE, 44, WIDTH - 2 * EDGE)
    drawing.text(EDGE, bottom + 36, "inside the packages", "head", "start")
    columns = {EDGE: bottom + 56, EDGE + HALF + EDGE: bottom + 56}
    for package, layers in packages:
        left = min(columns, key=lambda x: columns[x])
        name = package.removeprefix("lsgd.").replace(".", "/")
        drawing.text(left, columns[left] + 14, f"{name}/", "text", "start")
        columns[left] = _draw_floors(drawing, package, layers, left, columns[left] + 30, HALF) + 12
    return drawing.svg(max(columns.values()))


def _draw_floors(
    drawing: Drawing, package: str, layers: list[str], left: float, top: float, width: float
) -> float:
    """Draw the layers of a package below `top`, and return the y coordinate of their end."""
    for layer in layers:
        lines = _lines(package, modules(layer), width - 2 * PAD)
        height = len(lines) * LINE + 4
        drawing.box(left, top, width, height, "green" if PAGE in modules(layer) else "plain")
        for number, line in enumerate(lines):
            x, y = left + PAD, top + 2 + (number + 0.5) * LINE
            for name in line:
                drawing.text(x, y, name, "code", "start")
                x += CODE_LETTER * len(name) + GAP
        top += height
    return top


def _lines(package: str, names: list[str], width: float) -> list[list[str]]:
    """Arrange the names of a layer in lines of this width; a folder's name ends in a slash."""
    folder = ROOT / package.replace(".", "/")
    lines: list[list[str]] = [[]]
    for name in names:
        shown = f"{name}/" if (folder / name).is_dir() else name
        taken = sum(CODE_LETTER * len(each) + GAP for each in lines[-1])
        if lines[-1] and taken + CODE_LETTER * len(shown) > width:
            lines.append([])
        lines[-1].append(shown)
    return lines


def _told(package: str, layers: list[str]) -> str:
    floors = "; ".join(", ".join(modules(layer)) for layer in layers)
    return f"{package.replace('.', '/')}, from the top down: {floors}."


if __name__ == "__main__":
    write(NAME, draw())
