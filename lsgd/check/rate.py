"""Checks of the lr at every step, by what it comes to and not by lsgd.rules.schedule.

A run of small data has a reference of its own, say 0.1 for 64 images. That is one deviation of it,
and all else is found out relative to it: twice the minibatch has twice the lr, and so on.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lsgd.check.finding import Fact
from lsgd.learner import Learner
from lsgd.recipe import BatchGrowth, Recipe
from lsgd.recipe.stages import Stage

Curve = NDArray[np.float64]
"""The lr of every step of a run."""

WARMUP = 5
"""The epochs at the start of a long run that are asked step by step."""
MANY, SAMPLE = 200_000, 100
"""A run of more than MANY steps is sampled at SAMPLE steps of each epoch, and at all steps of an
epoch in or beside which the lr changes."""


def facts(learner: Learner) -> list[Fact]:
    """Reference, scaling, warmup, drops or another decay, and epochs."""
    recipe = learner.recipe
    curve = _curve(recipe)
    return [
        _reference(recipe),
        _scaling(recipe),
        _warmup(recipe, curve),
        _peak(curve),
        _drops(recipe, curve),
        _decay(curve),
        _epochs(learner),
    ]


def _reference(recipe: Recipe) -> Fact:
    batch = round(recipe.schedule.reference_batch)
    full = _full(recipe, batch)
    return Fact(
        "reference_lr",
        f"lr {full:g} for {batch} images",
        (full, batch),
    )


def _scaling(recipe: Recipe) -> Fact:
    size = recipe.batch_size
    full, twice = _full(recipe, size), _full(recipe, 2 * size)
    return Fact(
        "scaling",
        f"lr {full:.5g} for {size} images, {twice / full:.3g} times that for {2 * size}",
        twice / full,
    )


def _warmup(recipe: Recipe, curve: Curve) -> Fact:
    """The warmup of the run, or, if the run is too small for one, of four times the reference."""
    own = round(recipe.schedule.reference_batch)
    steps, where = recipe.steps_per_epoch, ""
    ramp = Ramp(curve, steps)
    small = curve if recipe.batch_size <= own else _curve(_like(recipe, own))
    if recipe.batch_size <= own:
        above = _like(recipe, 4 * own)
        steps, curve, where = (
            above.steps_per_epoch,
            _curve(above),
            f"none up to {own} images, then ",
        )
    idle = bool(small[0] == small.max())
    return Fact(
        "warmup",
        where + _warmup_in_words(curve, steps) + ("" if idle else "; also up to the reference"),
        Warmup(ramp, Ramp(curve, steps), _full(recipe, own), idle),
    )


@dataclass(frozen=True)
class Ramp:
    """The lr of every step of a run, and its steps per epoch."""

    curve: Curve
    steps: int

    def rises(self, start: float, full: float, epochs: float) -> bool:
        """Whether it goes from `start` to `full` by the same amount every step of these epochs."""
        length = epochs * self.steps
        if not length:
            return _close(float(self.curve[0]), full)
        ramp = start + (full - start) / length * np.arange(math.ceil(length))
        if length == len(ramp):  # else the decay has begun at the step behind it
            ramp = np.append(ramp, full)
        return np.allclose(self.curve[: len(ramp)], ramp[: len(self.curve)], rtol=1e-9)


@dataclass(frozen=True)
class Warmup:
    """How the lr begins."""

    own: Ramp
    """In this run."""
    above: Ramp
    """In this run, or in one that is large enough for a warmup from the reference."""
    reference: float
    """The lr of the reference."""
    idle: bool
    """Whether a run up to the reference begins with its full lr."""


def _warmup_in_words(curve: Curve, steps: int) -> str:
    arrival = int(np.argmax(curve))
    if arrival == 0:
        return f"none, lr {curve[0]:.5g} from the first step"
    levels = len(np.unique(curve[:arrival]))
    kind = {1: "constant", arrival: "gradual"}.get(levels, f"in {levels} stairs")
    return f"{kind}, {curve[0]:.3g} to {curve.max():.5g} over {arrival / steps:g} epochs"


def _drops(recipe: Recipe, curve: Curve) -> Fact:
    arrival = int(np.argmax(curve))
    changes = np.flatnonzero(np.diff(curve[arrival:])) + arrival + 1
    with np.errstate(divide="ignore"):  # a smooth decay may end at 0
        ratios = curve[changes - 1] / curve[changes]
    by_ten = np.allclose(ratios, 10, rtol=1e-9, atol=0)
    factor = "10" if by_ten else ", ".join(f"{ratio:.3g}" for ratio in ratios[:3])
    epochs = [recipe.epoch(step) for step in changes.tolist()]
    where = ", ".join(f"{epoch:.4g}" for epoch in epochs[:5]) + ", …" * (len(epochs) > 5)
    run = f"lr divided by {factor} at epochs {where}" if len(changes) else "none"
    if recipe.total_steps > MANY:
        run += f"; between these, asked of {SAMPLE} steps per epoch"
    if recipe.schedule.decay != "steps":
        run = f"{recipe.schedule.decay} from lr {curve[arrival]:.5g} to {curve[-1]:.3g}, no drops"
    return Fact("drops", run, (epochs, by_ten))


def _peak(curve: Curve) -> Fact:
    return Fact("peak_lr", f"lr {curve.max():.5g} at most", float(curve.max()))


@dataclass(frozen=True)
class Parabola:
    """A decay by a polynomial of power 2."""

    end: float
    """The lr at its end."""
    over: float
    """The step, counted from the run's first, at which it is there."""
    steps: int
    """Those of the run."""


def _decay(curve: Curve) -> Fact:
    """The parabola that the lr goes down by, if it is one, through three of its steps."""
    falls = np.flatnonzero(np.diff(curve) < 0)
    run, found = "no polynomial of power 2", None
    if len(falls) > 3 and len(falls) == falls[-1] - falls[0] + 1:
        first, last = int(falls[0]), int(falls[-1])
        along = np.arange(last - first + 1) / (last - first)
        part, middle = curve[first : last + 1], len(along) // 2
        square, slope, level = np.polyfit(along[[0, middle, -1]], part[[0, middle, -1]], 2)
        fitted = square * along**2 + slope * along + level
        if square > 0 and np.allclose(part, fitted, rtol=0, atol=1e-9 * part[0]):
            end = float(level - slope**2 / (4 * square))
            over = first - (last - first) * float(slope / (2 * square))
            found = Parabola(end, over, len(curve))
            end = 0.0 if abs(end) < 1e-9 else end
            run = f"by power 2 to lr {end:.3g} at step {over:.6g} of {len(curve)}"
    return Fact("decay", run, found)


def _epochs(learner: Learner) -> Fact:
    epochs = [len(steps) for _, steps in learner.epochs_left()]
    whole = set(epochs) == {learner.recipe.steps_per_epoch}
    return Fact(
        "epochs",
        f"{len(epochs)} of {epochs[0]} steps" + ("" if whole else ", and not all alike"),
        Epochs(len(epochs), sum(epochs), whole),
    )


@dataclass(frozen=True)
class Epochs:
    """How long a run is."""

    count: int
    steps: int
    whole: bool
    """Whether all epochs have the steps that an epoch has."""


def _curve(recipe: Recipe) -> Curve:
    if recipe.total_steps <= MANY:
        return _lrs(recipe, np.arange(recipe.total_steps))
    ends = [stage.epoch for stage in recipe.stages[1:]]
    stages = zip(recipe.stages, [*ends, recipe.epochs], strict=True)
    return np.concatenate([_stage_curve(recipe, stage, end) for stage, end in stages])


def _stage_curve(recipe: Recipe, stage: Stage, end: int) -> Curve:
    """The lr of every step of the epochs of a stage, which ends before this epoch."""
    steps = np.arange(stage.steps_before, recipe.first_step(end)).reshape(-1, stage.steps)
    sample = np.linspace(0, stage.steps - 1, SAMPLE).astype(int)
    curve = _lrs(recipe, steps[:, sample])
    # Epochs of one lr, like their neighbours, are filled in; all others are computed step by step.
    jumps = curve[1:, 0] != curve[:-1, -1]
    whole = (curve != curve[:, :1]).any(1)
    whole[1:] |= jumps
    whole[:-1] |= jumps
    whole[:WARMUP] = whole[-1] = True
    curve = np.repeat(curve[:, :1], stage.steps, axis=1)
    curve[whole] = _lrs(recipe, steps[whole])
    return curve.ravel()


def _lrs(recipe: Recipe, steps: NDArray[np.int64]) -> Curve:
    lrs = map(recipe.lr, steps.ravel().tolist())
    return np.fromiter(lrs, float, steps.size).reshape(steps.shape)


def _like(recipe: Recipe, batch: int) -> Recipe:
    """The same schedule for another minibatch, in a dataset that has twenty of them."""
    data = replace(recipe.data, train_examples=20 * batch)
    return replace(recipe, workers=1, worker_batch=batch, data=data, batch_growth=BatchGrowth())


def _full(recipe: Recipe, batch: int) -> float:
    """The highest lr of a run with this minibatch."""
    return float(_curve(_like(recipe, batch)).max())


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * abs(b)
