"""A shorter or longer run in proportion: the words that move what stands at certain epochs."""

from collections.abc import Sequence
from typing import Any

from lsgd.recipe import BatchGrowth, Recipe


def in_proportion(recipe: Recipe, epochs: int) -> list[str]:
    """The words for a run of so many epochs whose lr rises, drops and ends in proportion.

    Milestones are whole epochs inside the run, each once: of those that round to the same one the
    last stays, and one that rounds to the run's beginning or end goes. Words that would change
    nothing are left out.
    """
    rule, growth, ratio = recipe.schedule, recipe.batch_growth, epochs / recipe.epochs
    milestones = _moved(rule.milestones, ratio, epochs)
    first = min([*milestones, epochs])
    words: dict[str, tuple[Any, Any]] = {"epochs": (recipe.epochs, epochs)}
    words["schedule.milestones"] = ([*rule.milestones], [*milestones])
    if rule.factors:
        factors = [rule.factors[number] for number in milestones.values()]
        words["schedule.factors"] = ([*rule.factors], factors)
    if recipe.warms_up:
        # Never beyond the first drop, which may have been rounded down.
        warmup = min(float(f"{rule.warmup_epochs * ratio:.2g}"), first)
        words["schedule.warmup_epochs"] = (rule.warmup_epochs, warmup)
    if rule.decay_steps is not None:
        words["schedule.decay_steps"] = (rule.decay_steps, max(round(rule.decay_steps * ratio), 1))
    grown = _moved(growth.milestones, ratio, epochs)
    words["batch_growth.milestones"] = ([*growth.milestones], [*grown])
    if not grown:  # and a factor says nothing then
        words["batch_growth.factor"] = (growth.factor, BatchGrowth.factor)
    return [f"{key}={_shown(new)}" for key, (old, new) in words.items() if new != old]


def _moved(milestones: Sequence[float], ratio: float, epochs: int) -> dict[int, int]:
    """The whole epochs inside the run that milestones are moved to, each with the place of its
    milestone in the list."""
    moved = {round(milestone * ratio): place for place, milestone in enumerate(milestones)}
    return {epoch: place for epoch, place in moved.items() if 0 < epoch < epochs}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return str(value) if isinstance(value, int) else f"{value:g}"
