"""A recipe to change a field of, and its fields by dotted name."""

from dataclasses import Field, fields, is_dataclass, replace
from typing import Any

from lsgd.recipe import CommSettings, Data, InputsSettings, Model, Optim, Recipe, Schedule
from lsgd.recipe.fields import concerns

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


def changed(recipe: Recipe, **values: Any) -> Recipe:
    """The recipe with other values; `data__root` is data.root."""
    for name, value in values.items():
        group, _, key = name.partition("__")
        value = replace(getattr(recipe, group), **{key: value}) if key else value
        recipe = replace(recipe, **{group: value})
    return recipe


def leaves(recipe: Recipe) -> dict[str, Any]:
    """All fields of its workload by dotted name; target, deviations and lists count as one value
    each."""
    values = {}
    for entry in of_workload(recipe, recipe):
        value = getattr(recipe, entry.name)
        if is_dataclass(value) and entry.name != "target":
            group = entry.name
            of_group = of_workload(recipe, value)
            values |= {f"{group}.{part.name}": getattr(value, part.name) for part in of_group}
        else:
            values[entry.name] = value
    return values


def of_workload(recipe: Recipe, group: Any) -> list[Field[Any]]:
    """The fields of a group that concern the recipe's workload."""
    return [entry for entry in fields(group) if concerns(entry, recipe.data.workload)]
