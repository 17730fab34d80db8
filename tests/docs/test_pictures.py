"""Each drawing of the pages is what its program draws now, and tells who cannot see it the same."""

import re
import tomllib
from collections import defaultdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.pages import REPOSITORY

from docs.pictures import floors, launches, order, svg
from lsgd.api import load_recipe

FOLDER = REPOSITORY / "docs" / "pictures"
DRAWINGS = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.56
"""The width of a letter for its height, on average, in wide fonts such as DejaVu Sans."""


@pytest.fixture(params=DRAWINGS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def parsed(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text(encoding="utf-8"))


def words(path: Path) -> list[str]:
    """Every text of a drawing."""
    return [each.text or "" for each in parsed(path).iter(f"{SVG}text")]


def test_every_program_has_its_drawing() -> None:
    programs = {each.stem for each in FOLDER.glob("*.py")} - {"__init__", "svg"}
    assert {each.stem for each in DRAWINGS} == programs


def test_it_is_what_its_program_draws_now(path: Path) -> None:
    drawn = import_module(f"docs.pictures.{path.stem}").draw()
    again = f"draw it again: python -m docs.pictures.{path.stem}"
    assert path.read_text(encoding="utf-8") == drawn, again


def test_it_has_a_title_and_a_description(path: Path) -> None:
    root = parsed(path)
    assert root.get("role") == "img"
    named = {each.get("id"): each for each in root if each.tag in (f"{SVG}title", f"{SVG}desc")}
    assert set((root.get("aria-labelledby") or "").split()) == set(named)
    assert len(named) == 2
    assert all((each.text or "").strip() for each in named.values())


def test_it_follows_the_colours_of_its_reader(path: Path) -> None:
    """Whatever has a colour in the light has another in the dark."""
    (style,) = (each.text or "" for each in parsed(path).iter(f"{SVG}style"))
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    rules = re.compile(r"^(\S+)\{(.*#.*)\}$", re.M)
    in_light, in_dark = dict(rules.findall(light)), dict(rules.findall(dark))
    assert set(in_light) == set(in_dark)
    assert not set(in_light.items()) & set(in_dark.items())
    kinds = {each.get("class") for each in parsed(path).iter() if each.get("class")}
    assert kinds <= {
        name[1:] for rule in style.split("\n") for name in rule.split("{")[0].split(",")
    }


def test_no_text_leaves_it_or_covers_another_and_none_is_small(path: Path) -> None:
    root = parsed(path)
    width, height = (float(root.get(key) or 0) for key in ("width", "height"))
    assert width == svg.WIDTH
    assert min(svg.SIZES.values()) >= 18
    ends: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for each in root.iter(f"{SVG}text"):
        kind, text = each.get("class") or "text", each.text or ""
        taken = len(text) * (svg.CODE_LETTER if kind == "code" else LETTER * svg.SIZES[kind])
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[each.get("text-anchor") or ""]
        left, y = float(each.get("x") or 0) - share * taken, float(each.get("y") or 0)
        assert left >= 0, text
        assert left + taken <= width, text
        assert 0 < y < height, text
        ends[y].append((left, left + taken))
    for line in map(sorted, ends.values()):
        assert all(end <= begin for (_, end), (begin, _) in pairwise(line))


def test_the_floors_name_every_module_of_the_contracts() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    layers = [each for each in contracts if each["type"] == "layers"]
    named = [
        name for each in layers for layer in each["layers"] for name in re.findall(r"\w+", layer)
    ]
    packages = [
        name.removeprefix("lsgd.").replace(".", "/")
        for each in layers
        for name in each["containers"]
    ]
    shown = [word.rstrip("/") for word in words(FOLDER / "floors.svg")]
    assert sorted(set(named) | set(packages)) == sorted(set(shown) & (set(named) | set(packages)))
    assert all(shown.count(name) >= named.count(name) for name in named)


def test_a_new_floor_has_to_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = floors.draw()
    contracts = floors.contracts()
    monkeypatch.setattr(floors, "contracts", lambda: contracts | {"lsgd.models": ["one | two"]})
    assert floors.draw() != now


def test_each_folded_node_waits_for_its_children_alone() -> None:
    number, rows = launches.folded()
    of_place = dict(zip(map(id, drawn := launches.places()), number, strict=True))
    for place in drawn:
        below = [of_place[id(child)] for child in place.children]
        assert of_place[id(place)] == max(below, default=0) + 1
    assert [number.count(launch) for launch in range(1, len(rows) + 1)] == rows
    assert len(launches.one_by_one()[1]) == len(drawn) == sum(rows)


def test_the_order_is_one_of_the_run_that_it_names() -> None:
    """The times that are drawn make the order, and a worker does one thing at a time."""
    recipe = load_recipe(*order.WORDS)
    drawn = order.computed(recipe, order.epoch_of(recipe))
    assert [each.arrives for each in drawn] == sorted(each.arrives for each in drawn)
    for number, each in enumerate(drawn):
        assert each.begins < each.ends < each.arrives
        released = drawn[each.push.read[0] - 1].arrives if each.push.read[0] else 0.0
        assert released < each.begins
        assert each.staleness == sum(other.arrives > released for other in drawn[:number])
