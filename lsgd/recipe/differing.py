"""The fields in which two recipes differ."""

from dataclasses import asdict, dataclass
from typing import Any

from lsgd.recipe import Recipe
from lsgd.recipe.fields import flat


@dataclass(frozen=True)
class DifferingField:
    """A field in which two recipes differ, by its dotted key; None where one lacks it."""

    key: str
    values: tuple[Any, Any]
    trajectory: bool
    """Whether it decides what is computed."""


def differing_fields(recipes: tuple[Recipe, Recipe]) -> list[DifferingField]:
    """The fields in which two recipes differ, those of the trajectory first, in the recipe's order.

    The run folder is left out, as any two runs have two.
    """
    trajectories = [dict(flat(recipe.trajectory())) for recipe in recipes]
    # A trajectory may say more than the fields: that images are synthetic.
    first, second = (
        dict(flat(asdict(recipe))) | trajectory
        for recipe, trajectory in zip(recipes, trajectories, strict=True)
    )
    decisive = trajectories[0].keys() | trajectories[1].keys()
    fields = [
        DifferingField(key, (first.get(key), second.get(key)), key in decisive)
        for key in first | second
        if key != "run_dir" and first.get(key) != second.get(key)
    ]
    return sorted(fields, key=lambda field: not field.trajectory)
