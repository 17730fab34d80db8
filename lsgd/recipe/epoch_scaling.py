"""Overrides that stretch or shrink a run, with its schedules in proportion."""

from collections.abc import Sequence
from typing import Any

from lsgd.recipe import BatchGrowth, Recipe


def scale_epochs(recipe: Recipe, epochs: int) -> list[str]:
    """Return the overrides that give a recipe `epochs` epochs and scale its schedules to them.

    Milestones are whole epochs inside the run, each once: of those that round to the same one the
    last is kept, and one that rounds to the run's beginning or end is dropped. Overrides that would
    change nothing are left out.
    """
    rule, growth, ratio = recipe.schedule, recipe.batch_growth, epochs / recipe.epochs
    milestones = _moved(rule.milestones, ratio, epochs)
    first = min([*milestones, epochs])
    settings: dict[str, tuple[Any, Any]] = {"epochs": (recipe.epochs, epochs)}
    settings["schedule.milestones"] = ([*rule.milestones], [*milestones])
    if rule.factors:
        factors = [rule.factors[number] for number in milestones.values()]
        settings["schedule.factors"] = ([*rule.factors], factors)
    if recipe.warms_up:
        # The warmup must not pass the first drop, which may have been rounded down.
        warmup = min(float(f"{rule.warmup_epochs * ratio:.2g}"), first)
        settings["schedule.warmup_epochs"] = (rule.warmup_epochs, warmup)
    if recipe.optim.name == "rmsprop_warmup":
        for key in ("beta_center", "beta_period"):
            old = getattr(recipe.optim, key)
            settings[f"optim.{key}"] = (old, float(f"{old * ratio:.2g}"))
    points = _moved_points(rule.points, ratio)
    settings["schedule.points"] = ([list(point) for point in rule.points], points)
    sizes = recipe.image_sizes.points
    settings["image_sizes.points"] = ([list(point) for point in sizes], _moved_points(sizes, ratio))
    rows = recipe.evaluation.image_sizes
    # Of those that would begin in one epoch the last is kept, as the last of all has to be.
    begun = {min(round(row[0] * ratio), epochs - 1): row[1:] for row in rows}
    settings["evaluation.image_sizes"] = (
        [list(row) for row in rows],
        [[epoch, *row] for epoch, row in begun.items()],
    )
    first = recipe.evaluation.rectangle_epoch
    settings["evaluation.rectangle_epoch"] = (first, min(round(first * ratio), epochs - 1))
    if (augmented := recipe.data.augmented_epochs) is not None:
        settings["data.augmented_epochs"] = (augmented, max(round(augmented * ratio), 1))
    if rule.decay_steps is not None:
        settings["schedule.decay_steps"] = (
            rule.decay_steps,
            max(round(rule.decay_steps * ratio), 1),
        )
    grown = _moved(growth.milestones, ratio, epochs)
    settings["batch_growth.milestones"] = ([*growth.milestones], [*grown])
    if not grown:  # checks refuse a factor without milestones
        settings["batch_growth.factor"] = (growth.factor, BatchGrowth.factor)
    moved = _moved([row[0] for row in recipe.batch_schedule], ratio, epochs)
    phases = [[epoch, *recipe.batch_schedule[place][1:]] for epoch, place in moved.items()]
    settings["batch_schedule"] = ([list(row) for row in recipe.batch_schedule], phases)
    return [f"{key}={_shown(new)}" for key, (old, new) in settings.items() if new != old]


def _moved(milestones: Sequence[float], ratio: float, epochs: int) -> dict[int, int]:
    """Return the milestones times `ratio` that are inside the run, each with its old index.

    They are rounded to whole epochs.
    """
    moved = {round(milestone * ratio): place for place, milestone in enumerate(milestones)}
    return {epoch: place for epoch, place in moved.items() if 0 < epoch < epochs}


def _moved_points(points: Sequence[Sequence[float]], ratio: float) -> list[list[float]]:
    """Return points of (epoch, value) with their epochs times `ratio`, whole ones rounded.

    Of more than two that fall on one epoch the first and the last are kept.
    """
    moved: list[list[float]] = []
    for epoch, value in points:
        at = float(f"{epoch * ratio:.6g}")
        at = round(at) if float(epoch).is_integer() else at
        if len(moved) > 1 and moved[-2][0] == at:
            moved.pop()
        moved.append([at, value])
    return moved


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return str(value) if isinstance(value, int) else f"{value:.15g}"
