"""The comparison of two recipes by field."""

from dataclasses import asdict, dataclass
from typing import Any

from lsgd.recipe import Recipe
from lsgd.recipe.fields import flatten


@dataclass(frozen=True)
class DifferingField:
    """A field whose values differ between two recipes; None is the value where one lacks it."""

    key: str
    values: tuple[Any, Any]
    trajectory: bool
    """Whether it is a trajectory field, which decides what a run computes."""


def differing_fields(recipes: tuple[Recipe, Recipe]) -> list[DifferingField]:
    """Return the fields that differ between two recipes, trajectory fields first.

    Within each kind they are in the recipe's order. The run folder is left out, since it always
    differs.
    """
    trajectories = [dict(flatten(recipe.trajectory())) for recipe in recipes]
    # A trajectory may have more keys than the recipe has fields, such as data.synthetic.
    first, second = (
        dict(flatten(asdict(recipe))) | trajectory
        for recipe, trajectory in zip(recipes, trajectories, strict=True)
    )
    decisive = trajectories[0].keys() | trajectories[1].keys()
    fields = [
        DifferingField(key, (first.get(key), second.get(key)), key in decisive)
        for key in first | second
        if key != "run_dir" and first.get(key) != second.get(key)
    ]
    return sorted(fields, key=lambda field: not field.trajectory)
