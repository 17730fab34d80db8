"""Checks of the lr at every step, against the paper's rules and not by lsgd.rules.schedule.

A run of small data has a reference of its own, say 0.1 for 64 images. That is one deviation, and
the other rules are checked relative to it: twice the minibatch has twice the lr, and so on.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lsgd.check.finding import Finding
from lsgd.learner import Learner
from lsgd.recipe import Recipe

Curve = NDArray[np.float64]
"""The lr of every step of a run."""

DROPS, EPOCHS, WARMUP = (30, 60, 80), 90, 5
MANY, SAMPLE = 200_000, 100
"""A run of more than MANY steps is sampled at SAMPLE steps of each epoch, and at all steps of an
epoch in or beside which the lr changes."""


def findings(learner: Learner) -> list[Finding]:
    """The rules of sections 2.1, 2.2 and 5.1: reference, scaling, warmup, drops and epochs."""
    recipe = learner.recipe
    curve = _curve(recipe)
    return [
        _reference(recipe),
        _scaling(recipe),
        _warmup(recipe, curve),
        _drops(recipe, curve),
        _epochs(learner),
    ]


def _reference(recipe: Recipe) -> Finding:
    batch = round(recipe.schedule.reference_batch)
    full = _full(recipe, batch)
    return Finding(
        "reference_lr",
        "5.1",
        "lr 0.1 for 256 images",
        f"lr {full:g} for {batch} images",
        # Of 0.0125 for 32 images the ratio is the paper's, but not the lr that warmup starts from.
        batch == 256 and _close(full, 0.1),
    )


def _scaling(recipe: Recipe) -> Finding:
    size = recipe.batch_size
    full, twice = _full(recipe, size), _full(recipe, 2 * size)
    return Finding(
        "scaling",
        "2.1",
        "twice the minibatch, twice the lr",
        f"lr {full:.5g} for {size} images, {twice / full:.3g} times that for {2 * size}",
        _close(twice, 2 * full),
    )


def _warmup(recipe: Recipe, curve: Curve) -> Finding:
    """The warmup of the run, or, if the run is too small for one, of four times the reference."""
    own = round(recipe.schedule.reference_batch)
    steps, where = recipe.steps_per_epoch, ""
    small = curve if recipe.batch_size <= own else _curve(_like(recipe, own))
    if recipe.batch_size <= own:
        above = _like(recipe, 4 * own)
        steps, curve, where = (
            above.steps_per_epoch,
            _curve(above),
            f"none up to {own} images, then ",
        )
    idle = small[0] == small.max()
    start, full = _full(recipe, own), curve.max()
    # From the lr of the reference by the same amount every step, and there at step 5 S.
    ramp = np.append(start + (full - start) / (WARMUP * steps) * np.arange(WARMUP * steps), full)
    beginning = curve[: len(ramp)]
    return Finding(
        "warmup",
        "2.2",
        "gradual, every step, from the reference lr, over 5 epochs, and only above the reference",
        where + _warmup_in_words(curve, steps) + ("" if idle else "; also up to the reference"),
        # Where the lr does not grow with the minibatch there is nothing to warm up to.
        bool(idle and (full == start or np.allclose(beginning, ramp[: len(curve)], rtol=1e-9))),
    )


def _warmup_in_words(curve: Curve, steps: int) -> str:
    arrival = int(np.argmax(curve))
    if arrival == 0:
        return f"none, lr {curve[0]:.5g} from the first step"
    levels = len(np.unique(curve[:arrival]))
    kind = {1: "constant", arrival: "gradual"}.get(levels, f"in {levels} stairs")
    return f"{kind}, {curve[0]:.3g} to {curve.max():.5g} over {arrival / steps:g} epochs"


def _drops(recipe: Recipe, curve: Curve) -> Finding:
    steps, arrival = recipe.steps_per_epoch, int(np.argmax(curve))
    changes = np.flatnonzero(np.diff(curve[arrival:])) + arrival + 1
    ratios = curve[changes - 1] / curve[changes]
    by_ten = np.allclose(ratios, 10, rtol=1e-9, atol=0)
    factor = "10" if by_ten else ", ".join(f"{ratio:.3g}" for ratio in ratios[:3])
    where = ", ".join(f"{step / steps:.4g}" for step in changes[:5]) + ", …" * (len(changes) > 5)
    run = f"lr divided by {factor} at epochs {where}" if len(changes) else "none"
    if recipe.total_steps > MANY:
        run += f"; between these, asked of {SAMPLE} steps per epoch"
    if recipe.schedule.decay != "steps":
        run = f"{recipe.schedule.decay} from lr {curve[arrival]:.5g} to {curve[-1]:.3g}, no drops"
    return Finding(
        "drops",
        "5.1",
        "lr divided by 10 at epochs 30, 60, 80",
        run,
        changes.tolist() == [epoch * steps for epoch in DROPS] and by_ten,
    )


def _epochs(learner: Learner) -> Finding:
    epochs = [len(steps) for _, steps in learner.epochs_left()]
    whole = set(epochs) == {learner.recipe.steps_per_epoch}
    return Finding(
        "epochs",
        "5.1",
        "90, for every minibatch",
        f"{len(epochs)} of {epochs[0]} steps" + ("" if whole else ", and not all alike"),
        len(epochs) == EPOCHS and whole,
    )


def _curve(recipe: Recipe) -> Curve:
    if recipe.total_steps <= MANY:
        return _lrs(recipe, np.arange(recipe.total_steps))
    steps = np.arange(recipe.total_steps).reshape(recipe.epochs, -1)
    sample = np.linspace(0, recipe.steps_per_epoch - 1, SAMPLE).astype(int)
    curve = _lrs(recipe, steps[:, sample])
    # Epochs of one lr, like their neighbours, are filled in; all others are computed step by step.
    jumps = curve[1:, 0] != curve[:-1, -1]
    whole = (curve != curve[:, :1]).any(1)
    whole[1:] |= jumps
    whole[:-1] |= jumps
    whole[:WARMUP] = whole[-1] = True
    curve = np.repeat(curve[:, :1], recipe.steps_per_epoch, axis=1)
    curve[whole] = _lrs(recipe, steps[whole])
    return curve.ravel()


def _lrs(recipe: Recipe, steps: NDArray[np.int64]) -> Curve:
    lrs = map(recipe.lr, steps.ravel().tolist())
    return np.fromiter(lrs, float, steps.size).reshape(steps.shape)


def _like(recipe: Recipe, batch: int) -> Recipe:
    """The same schedule for another minibatch, in a dataset that has twenty of them."""
    data = replace(recipe.data, train_examples=20 * batch)
    return replace(recipe, workers=1, worker_batch=batch, data=data)


def _full(recipe: Recipe, batch: int) -> float:
    """The highest lr of a run with this minibatch."""
    return float(_curve(_like(recipe, batch)).max())


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * abs(b)
