"""Each drawing of the pages is what its program draws now, and draws what lsgd has."""

from importlib import import_module
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.pages import REPOSITORY

from docs.pictures import order

FOLDER = REPOSITORY / "docs" / "pictures"
DRAWINGS = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=DRAWINGS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_every_program_has_its_drawing() -> None:
    programs = {each.stem for each in FOLDER.glob("*.py")} - {"__init__", "svg"}
    assert {each.stem for each in DRAWINGS} == programs


def test_it_is_what_its_program_draws_now(path: Path) -> None:
    drawn = import_module(f"docs.pictures.{path.stem}").draw()
    again = f"draw it again: python -m docs.pictures.{path.stem}"
    assert path.read_text(encoding="utf-8") == drawn, again


def test_the_order_is_one_of_the_run_that_it_names() -> None:
    """The times that are drawn make the order, and a worker does one thing at a time."""
    recipe = compose_recipe(*order.OVERRIDES)
    drawn = order.timed_pushes(recipe, order.epoch_of(recipe))
    assert [each.arrives for each in drawn] == sorted(each.arrives for each in drawn)
    for number, each in enumerate(drawn):
        assert each.begins < each.ends < each.arrives
        released = drawn[each.push.read[0] - 1].arrives if each.push.read[0] else 0.0
        assert released < each.begins
        assert each.staleness == sum(other.arrives > released for other in drawn[:number])
