"""The step of the paper's own server."""

from dataclasses import replace

import pytest
from helpers.composed import compose_recipe

from lsgd.plan import paper


def test_the_paper_step() -> None:
    """29 h / 90 / 5004 steps, of which a backward pass of 120 ms."""
    there = paper.paper_step()
    assert there.seconds == pytest.approx(0.232, abs=5e-4)
    assert there.backward_share * there.seconds == pytest.approx(0.120)
    assert there.images_per_second == pytest.approx(138, abs=0.5)


def test_the_paper_step_is_that_of_its_own_network() -> None:
    """One with anti-aliasing, frozen layers, options or of grey images takes another time."""
    grey = ["data.channels=1", "data.mean=[0.449]", "data.std=[0.226]"]
    assert paper.is_paper_model(compose_recipe("recipe=bs8k"))
    assert paper.is_paper_model(compose_recipe("recipe=bs8k", "model.last_gamma=1"))
    for words in (["model.blurpool=all"], ["model.frozen=[conv1]"], grey, ["precision=bfloat16"]):
        assert not paper.is_paper_model(compose_recipe("recipe=bs8k", *words))
    recipe = compose_recipe("recipe=bs8k")
    wide = replace(recipe, model=replace(recipe.model, options={"width_per_group": 128}))
    assert not paper.is_paper_model(wide)
