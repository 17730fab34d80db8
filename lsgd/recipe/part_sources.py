"""The parts of one's own that a recipe names: their import, their options and their source."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from lsgd.errors import UsageError
from lsgd.override_syntax import key_and_value
from lsgd.own_parts import (
    KINDS,
    METRIC,
    OPTIMIZER,
    SCHEDULE,
    WORKLOAD,
    OwnPart,
    PartKind,
    import_part,
    installed_parts,
    is_import_path,
    refusing_errors,
    snake_case,
)
from lsgd.recipe import Recipe
from lsgd.rules.metric import METRICS, OWN_NAME


def with_own_parts(
    recipe: Recipe, overrides: Sequence[str] = (), *, all_parts: bool = False
) -> Recipe:
    """Import the parts of a recipe and record their options and the hashes of their sources.

    A part whose hash the recipe has already, as a saved one does, is not imported, unless one of
    the overrides names it too, or with `all_parts`. Raises UsageError for a part that is missing or
    broken, whose options are wrong, or whose source has changed since that hash was recorded.
    """
    for kind in KINDS:
        name, source = kind.named(recipe), kind.source_of(recipe)
        path = name if is_import_path(name) else _installed_path(kind, name)
        said = any(key_and_value(word) == (kind.key, name) for word in overrides)
        if path is None or (source and not said and not all_parts):
            continue
        part = import_part(kind, path)
        if source:
            part.check_source(source)
        made = {
            kind.field: path,
            f"{kind.prefix}options": part.completed(kind.options_of(recipe)),
            f"{kind.prefix}source": part.source,
        }
        recipe = replace(recipe, **{kind.group: replace(getattr(recipe, kind.group), **made)})
        if kind is OPTIMIZER:
            _check_weight_decay(part, recipe.optim.weight_decay)
        if kind is SCHEDULE:
            _check_decay(part, recipe)
        if kind is METRIC:
            _check_metric_name(part, snake_case(path))
        if kind is WORKLOAD:
            _check_metric_names(part, recipe)
    return recipe


def _check_metric_name(part: OwnPart, name: str) -> None:
    """Raise UsageError if a metric's name in rows is that of a metric of lsgd's, or not plain."""
    if name in METRICS or not OWN_NAME.fullmatch(name):
        raise UsageError(
            f"{part.override} would have the name {name!r} in rows, which "
            f"{'lsgd has itself' if name in METRICS else 'is not of plain letters'}; rename it"
        )


def _check_metric_names(part: OwnPart, recipe: Recipe) -> None:
    """Raise UsageError unless a workload names its metrics, and all that the recipe asks for."""
    names = getattr(part.made_class, "metric_names", ())
    if not isinstance(names, tuple) or not names or not all(map(_is_metric_name, names)):
        raise UsageError(
            f"{part.override} has metric_names={names!r}; write a tuple of names in small letters, "
            "such as ('mean_error',), of which the first judges a run"
        )
    goal = recipe.metric
    named = {
        **{f"metric.epochs_to.{name}": name for name in goal.epochs_to},
        **{f"metric.steps_to.{name}": name for name in goal.steps_to},
        "stop.metric": recipe.stop.metric,
        "keep_best": recipe.keep_best or "loss",
    }
    for key, name in named.items():
        if name not in ("loss", *names):
            shown = key if key.endswith(name) else f"{key}={name}"
            raise UsageError(
                f"{shown} is not a metric of {part.override}; write one of "
                f"{', '.join(('loss', *names))}"
            )


def _is_metric_name(name: Any) -> bool:
    return isinstance(name, str) and bool(OWN_NAME.fullmatch(name)) and name != "loss"


def _check_decay(part: OwnPart, recipe: Recipe) -> None:
    """Raise UsageError unless a decay returns numbers of 0 or more for the shares that remain."""
    decay = part(recipe.schedule.options)
    for place in range(11):
        remaining = 1 - place / 10
        with refusing_errors(f"{part.override} fails where {remaining:g} of the decay remains"):
            share = float(decay.share(remaining))
        if not 0 <= share < math.inf:
            raise UsageError(
                f"{part.override} has {share:g} of the lr left where {remaining:g} of the decay "
                "remains; return a number of 0 or more"
            )


def _check_weight_decay(part: OwnPart, weight_decay: float) -> None:
    """Raise UsageError for a weight decay that an optimizer does not take."""
    if weight_decay and not part.takes_any and "weight_decay" not in part.arguments:
        raise UsageError(
            f"optim.weight_decay={weight_decay:g} has no effect with {part.override}, which takes "
            "no weight_decay; write optim.weight_decay=0"
        )


def check_saved_parts(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a part in a saved recipe without the hash of its source."""
    for kind in KINDS:
        group = values.get(kind.group)
        settings = group if isinstance(group, Mapping) else {}
        name = settings.get(kind.field)
        if is_import_path(name) and not settings.get(f"{kind.prefix}source"):
            raise UsageError(
                f"a saved recipe with {kind.key}={name} has the hash of its source in "
                f"{kind.group}.{kind.prefix}source; give that of a run of lsgd"
            )


def changed_parts(recipe: Recipe, other: Recipe) -> list[str]:
    """Return the parts, as overrides, that two recipes name and whose sources differ."""
    theirs = other.part_sources
    return [
        part for part, source in recipe.part_sources.items() if theirs.get(part, source) != source
    ]


def _installed_path(kind: PartKind, name: str) -> str | None:
    """Return the import path of an installed part of this name; None for a choice of lsgd's own."""
    if not name:  # of a field that the workload lacks
        return None
    [entry] = [e for e in fields(_settings(kind)) if e.name == kind.field]
    try:
        entry.metadata["one_of"].enforce(kind.key, name)
    except UsageError:
        return installed_parts(kind).get(name)
    return None


def _settings(kind: PartKind) -> Any:
    [group] = [entry.type for entry in fields(Recipe) if entry.name == kind.group]
    return group
