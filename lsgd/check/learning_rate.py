"""Observations of the lr at every step, by its values and not by the code of lsgd.rules.schedule.

A recipe for small data has its own reference, such as 0.1 for 64 images. That is one deviation; all
other observations are relative to this reference: twice the minibatch has twice the lr, and so on.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lsgd.check.observation import Observation
from lsgd.learner import Learner
from lsgd.recipe import BatchGrowth, Recipe, Stage
from lsgd.rules import optim
from lsgd.strategy.allreduce import AllReduce

Curve = NDArray[np.float64]
"""The lr of every step of a run."""

WARMUP = 5
"""The number of first epochs of a long run whose lr is computed at each step."""
MANY, SAMPLE = 200_000, 100
"""The limit on steps above which a run is sampled, and the samples per epoch.
All steps are computed of an epoch in or beside which the lr changes."""


@dataclass(frozen=True)
class LrCurve:
    """The learning rate of every step of a run, with the epoch at which each step begins."""

    lrs: Curve
    epochs: NDArray[np.float64]

    @property
    def end(self) -> int:
        """The number of epochs of the run, whose last epoch is a whole one."""
        return int(self.epochs[-1]) + 1

    def rises(self, start: float, full: float, epochs: float) -> bool:
        """Return whether the lr rises linearly from `start` to `full` in the first `epochs`."""
        if not epochs:
            return math.isclose(float(self.lrs[0]), full)
        rising = self.epochs <= epochs  # a step behind them may already be in the decay
        ramp = start + (full - start) * self.epochs[rising] / epochs
        return np.allclose(self.lrs[rising], ramp, rtol=1e-9)


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a run's learning rate, from its reference to its decay, and length."""
    recipe = learner.recipe
    run = _lr_curve(recipe)
    curve = run.lrs
    return [
        _reference(learner),
        _scaling(recipe),
        _warmup(recipe, run),
        Observation("peak_lr", f"lr {curve.max():.5g} at most", float(curve.max())),
        _drops(recipe, curve),
        _decay(curve),
        _whole_curve(recipe, run),
        _epochs(learner),
    ]


def _reference(learner: Learner) -> Observation:
    recipe = learner.recipe
    batch = _reference_batch(recipe)
    full = _full(recipe, batch)
    assert isinstance(learner.strategy, AllReduce)
    groups = learner.strategy.optimizer.param_groups
    lrs = {full * group.get(optim.LR_FACTOR, 1.0) for group in groups if group["params"]}
    others = sorted(lrs - {full})
    return Observation(
        "reference_lr",
        f"lr {full:g} for {batch} images"
        + "".join(f", and {other:g} for the last layer" for other in others),
        (full, batch, *others),
    )


def _reference_batch(recipe: Recipe) -> int:
    """Return the reference batch as a minibatch that can be trained, of one image or more."""
    return max(1, round(recipe.schedule.reference_batch))


def _scaling(recipe: Recipe) -> Observation:
    size = recipe.batch_size
    full, twice = _full(recipe, size), _full(recipe, 2 * size)
    return Observation(
        "scaling",
        f"lr {full:.5g} for {size} images, {twice / full:.3g} times that for {2 * size}",
        twice / full,
    )


def _warmup(recipe: Recipe, run: LrCurve) -> Observation:
    """Observe the lr warmup of the run, or else of a run with four times the reference batch."""
    own = _reference_batch(recipe)
    larger, where = run, ""
    small = run.lrs if recipe.batch_size <= own else _curve(_like(recipe, own))
    if recipe.batch_size <= own:
        larger, where = _lr_curve(_like(recipe, 4 * own)), f"none up to {own} images, then "
    idle = bool(small[0] == small.max())
    return Observation(
        "warmup",
        where + warmup_in_words(larger) + ("" if idle else "; also up to the reference"),
        Warmup(run, larger, _full(recipe, own), idle),
    )


def _lr_curve(recipe: Recipe) -> LrCurve:
    epochs = [
        stage.epoch + np.arange((end - stage.epoch) * stage.steps_per_epoch) / stage.steps_per_epoch
        for stage, end in _stages(recipe)
    ]
    return LrCurve(_curve(recipe), np.concatenate(epochs))


@dataclass(frozen=True)
class Warmup:
    """Observations of the learning rate at the start of a run."""

    own: LrCurve
    """The lr of this run."""
    larger_run: LrCurve
    """The lr of this run, or of a larger one if this is too small for a warmup."""
    reference: float
    """The reference lr."""
    starts_at_full_lr: bool
    """Whether a run up to the reference batch starts at its full lr."""


def warmup_in_words(run: LrCurve) -> str:
    """Describe the warmup of a run with this lr."""
    curve = run.lrs
    arrival = int(np.argmax(curve))
    if arrival == 0:
        return f"none, lr {curve[0]:.5g} from the first step"
    levels = len(np.unique(curve[:arrival]))
    kind = {1: "constant", arrival: "gradual"}.get(levels, f"in {levels} stairs")
    return f"{kind}, {curve[0]:.3g} to {curve.max():.5g} over {run.epochs[arrival]:g} epochs"


def _drops(recipe: Recipe, curve: Curve) -> Observation:
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
    return Observation("drops", run, (epochs, by_ten))


@dataclass(frozen=True)
class Parabola:
    """An observed polynomial decay of power 2 of the learning rate."""

    end: float
    """The lr at the end of the decay."""
    end_step: float
    """The step of the run at which the decay ends."""
    steps: int
    """The number of steps of the run."""


def _decay(curve: Curve) -> Observation:
    """Observe whether the lr decays along a parabola, which is fitted through three steps."""
    falls = np.flatnonzero(np.diff(curve) < 0)
    run, found = "no polynomial of power 2", None
    if len(falls) > 3 and len(falls) == falls[-1] - falls[0] + 1:
        first, last = int(falls[0]), int(falls[-1])
        along = np.arange(last - first + 1) / (last - first)
        part, middle = curve[first : last + 1], len(along) // 2
        square, slope, level = np.polyfit(along[[0, middle, -1]], part[[0, middle, -1]], 2)
        fitted = square * along**2 + slope * along + level
        # The curvature of a straight line is a rounding error.
        if square > 1e-9 * part[0] and np.allclose(part, fitted, rtol=0, atol=1e-9 * part[0]):
            end = float(level - slope**2 / (4 * square))
            over = first - (last - first) * float(slope / (2 * square))
            found = Parabola(end, over, len(curve))
            end = 0.0 if abs(end) < 1e-9 else end
            run = f"by power 2 to lr {end:.3g} at step {over:.6g} of {len(curve)}"
    return Observation("decay", run, found)


def _whole_curve(recipe: Recipe, run: LrCurve) -> Observation:
    """Observe the lr of every step, for sources that state it as a whole."""
    text = f"{warmup_in_words(run)}, then {recipe.schedule.decay} to {run.lrs[-1]:.3g}"
    return Observation("lr_curve", text, run)


def _epochs(learner: Learner) -> Observation:
    epochs = [len(steps) for _, steps in learner.remaining_epochs()]
    recipe = learner.recipe
    if recipe.may_stop_early:
        stop, ends, most = recipe.stop, [], len(epochs)
        if stop.patience is not None:
            most = 0
            ends.append(f"stop.patience={stop.patience} ends it by its {stop.metric}")
        if recipe.metric.stop:
            ends.append("metric.stop=true ends it at its target")
        run = "; ".join([f"{len(epochs)} at most", *ends])
        return Observation("epochs", run, RunLength(0, 0, whole=False, most=most))
    whole = set(epochs) == {recipe.steps_per_epoch}
    return Observation(
        "epochs",
        f"{len(epochs)} of {epochs[0]} steps" + ("" if whole else ", and not all equal"),
        RunLength(len(epochs), sum(epochs), whole, most=len(epochs)),
    )


@dataclass(frozen=True)
class RunLength:
    """The length of a run, in epochs and in steps; 0 of a run that may stop early."""

    count: int
    steps: int
    whole: bool
    """Whether all epochs have the full number of steps."""
    most: int
    """The number of epochs of a run that ends there or at its target; 0 if patience may end it."""


def _curve(recipe: Recipe) -> Curve:
    if recipe.total_steps <= MANY:
        return _lrs(recipe, np.arange(recipe.total_steps))
    return np.concatenate([_stage_curve(recipe, stage, end) for stage, end in _stages(recipe)])


def _stages(recipe: Recipe) -> Iterator[tuple[Stage, int]]:
    """Iterate over the stages of a run, each with the epoch at which it ends."""
    ends = [stage.epoch for stage in recipe.stages[1:]]
    return zip(recipe.stages, [*ends, recipe.epochs], strict=True)


def _stage_curve(recipe: Recipe, stage: Stage, end: int) -> Curve:
    """Return the learning rate of every step of a stage of a run, up to epoch `end`."""
    steps = np.arange(stage.steps_before, recipe.first_step(end)).reshape(-1, stage.steps_per_epoch)
    sample = np.linspace(0, stage.steps_per_epoch - 1, SAMPLE).astype(int)
    curve = _lrs(recipe, steps[:, sample])
    # Epochs of constant lr without a jump beside them are filled in; others are computed by step.
    jumps = curve[1:, 0] != curve[:-1, -1]
    whole = (curve != curve[:, :1]).any(1)
    whole[1:] |= jumps
    whole[:-1] |= jumps
    whole[:WARMUP] = whole[-1] = True
    curve = np.repeat(curve[:, :1], stage.steps_per_epoch, axis=1)
    curve[whole] = _lrs(recipe, steps[whole])
    return curve.ravel()


def _lrs(recipe: Recipe, steps: NDArray[np.int64]) -> Curve:
    lrs = map(recipe.lr, steps.ravel().tolist())
    return np.fromiter(lrs, float, steps.size).reshape(steps.shape)


def _like(recipe: Recipe, batch: int) -> Recipe:
    """Return a copy of a recipe with one worker of `batch` images and 20-step epochs."""
    data = replace(recipe.data, train_examples=20 * batch)
    plain = replace(recipe, batch_growth=BatchGrowth(), batch_schedule=[])
    return replace(plain, workers=1, worker_batch=batch, data=data)


def _full(recipe: Recipe, batch: int) -> float:
    """Return the highest learning rate of a run of this recipe with another minibatch size."""
    return float(_curve(_like(recipe, batch)).max())
