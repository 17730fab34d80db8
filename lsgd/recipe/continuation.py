"""Conditions under which a run may go on to more epochs, as if it had had them from the start."""

from lsgd.recipe import Recipe, differing_fields


def is_longer_run(recipe: Recipe, earlier: Recipe) -> bool:
    """Return whether a recipe is an earlier one with more epochs and perhaps another lr schedule.

    A dry run is never one, since its steps are chosen by the number of epochs.
    """
    keys = [field.key for field in differing_fields((earlier, recipe)) if field.trajectory]
    return (
        recipe.epochs > earlier.epochs
        and not recipe.rehearse
        and all(key == "epochs" or key.startswith("schedule.") for key in keys)
    )


def past_difference(recipe: Recipe, earlier: Recipe, steps: int) -> str:
    """Return how a longer run differs from an earlier one in its first steps; empty if nowhere.

    The recipes differ as in is_longer_run. Then a step depends on them by its lr, and by the lr to
    which that of a decoupled decay or of the last layer is relative; a row of metrics also by
    whether its epoch is evaluated.
    """
    if steps and (why := _scale_difference(recipe, earlier)):
        return why
    # Of several local steps before a push each has its own lr.
    parts = recipe.strategy.batches_per_push
    places = (place / parts for place in range(min(steps, earlier.total_steps) * parts))
    gap, step = max(
        ((abs(recipe.lr(place) - earlier.lr(place)), place) for place in places),
        key=lambda pair: pair[0],
        default=(0.0, 0.0),
    )
    if gap:
        return (
            f"step {step:g} had lr {earlier.lr(step):g}, and would have had {recipe.lr(step):g} "
            f"with schedule.decay={recipe.schedule.decay} over {recipe.epochs} epochs"
        )
    for epoch in range(earlier.locate_step(steps)[0]):
        if earlier.evaluates_after(epoch) and not recipe.evaluates_after(epoch):
            return (
                f"epoch {epoch + 1} was evaluated as the last, and is not one of every "
                f"evaluation.every={recipe.evaluation.every}"
            )
    return ""


def _scale_difference(recipe: Recipe, earlier: Recipe) -> str:
    """Return how two runs of equal lrs differ by an lr that all of their steps are relative to."""
    if recipe.optim.decay == "decoupled" and recipe.scaled_lr != earlier.scaled_lr:
        return (
            f"optim.decay=decoupled is relative to the full lr, which was {earlier.scaled_lr:g}, "
            f"and would have been {recipe.scaled_lr:g}"
        )
    before, after = earlier.schedule.reference_lr, recipe.schedule.reference_lr
    if recipe.optim.head_lr is not None and before != after:
        return (
            f"optim.head_lr={recipe.optim.head_lr:g} is relative to schedule.reference_lr, which "
            f"was {before:g}, and would have been {after:g}"
        )
    return ""
