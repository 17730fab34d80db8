"""A base recipe for tests that change single fields, and functions on its fields."""

from dataclasses import Field, fields, is_dataclass, replace
from typing import Any

from lsgd.recipe import CommSettings, Data, InputsSettings, Model, Optim, Recipe, Schedule
from lsgd.recipe.fields import applies_to

BASE = Recipe(
    name="base",
    data=Data("imagenet", 1281167, 50000, 1000, 3, 224, [0.5] * 3, [0.2] * 3, "crop_flip"),
    model=Model("resnet50"),
    optim=Optim(),
    schedule=Schedule(),
    inputs=InputsSettings(),
    comm=CommSettings(),
    workers=256,
    worker_batch=32,
    epochs=90,
)


def with_fields(recipe: Recipe, **values: Any) -> Recipe:
    """Return a copy of the recipe with other field values; `data__root` sets data.root."""
    for name, value in values.items():
        group, _, key = name.partition("__")
        value = replace(getattr(recipe, group), **{key: value}) if key else value
        recipe = replace(recipe, **{group: value})
    return recipe


def field_values(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of the recipe's workload by dotted name, with their values.

    target, deviations and lists count as one value each.
    """
    values = {}
    for entry in workload_fields(recipe, recipe):
        value = getattr(recipe, entry.name)
        if is_dataclass(value) and entry.name != "target":
            group = entry.name
            of_group = workload_fields(recipe, value)
            values |= {f"{group}.{part.name}": getattr(value, part.name) for part in of_group}
        else:
            values[entry.name] = value
    return values


def workload_fields(recipe: Recipe, group: Any) -> list[Field[Any]]:
    """Return the dataclass fields of a group that apply to the recipe's workload."""
    return [entry for entry in fields(group) if applies_to(entry, recipe.data.workload)]
