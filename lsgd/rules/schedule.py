"""Learning rates and image sizes as functions of the epoch.

These are linear scaling, warmup, step drops, smooth decays, and values by points.

Goyal et al. 2017: the linear scaling rule is section 2.1, the warmups are section 2.2, the drops by
ten at 30, 60 and 80 of 90 epochs are section 5.1. The polynomial decay is that of You et al. 2017,
algorithm 1, as MLPerf has it after a warmup; the cosine is that of Loshchilov and Hutter 2017. An
lr by points is linear between pairs of epoch and lr, as in the recipes of FFCV and fast.ai.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

SCALINGS = ("linear", "sqrt", "none")
WARMUPS = ("gradual", "constant", "none")
SMOOTH_DECAYS = ("polynomial", "linear", "cosine")
DECAYS = ("steps", *SMOOTH_DECAYS, "points")
ROUNDING = 1e-10
"""The tolerance, in epochs, by which a step counts as at a change of the learning rate.

Step 68 of 50 per epoch begins at 1 + 18 / 50, which is rounded to a number below 1.36. A step is a
much larger part of an epoch, and the rounding of an epoch a much smaller one.
"""


class LrDecay(Protocol):
    """The interface of a decay of the learning rate, from the end of the warmup on."""

    def share(self, remaining: float) -> float:
        """Return the share of the full lr where this share of the decay remains, from 1 to 0.

        It is a pure function: the same in each process, and again after a resume.
        """


def is_reached(epoch: float, change: float) -> bool:
    """Return whether a step that begins at this fractional epoch is at a change of the lr or later.

    >>> is_reached(1 + 18 / 50, 1.36), is_reached(1 + 17 / 50, 1.36)
    (True, False)
    """
    return epoch >= change - ROUNDING


def scaled_lr(
    batch_size: int, *, reference_lr: float, reference_batch: float, scaling: str
) -> float:
    """Return the learning rate scaled to a minibatch of `batch_size`, before any warmup or drop.

    >>> scaled_lr(8192, reference_lr=0.1, reference_batch=256, scaling="linear")
    3.2
    """
    ratio = batch_size / reference_batch
    return reference_lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def has_warmup(
    batch_size: int, *, reference_batch: float, warmup: str, warmup_start: float | None
) -> bool:
    """Return whether a run with this minibatch size has a learning-rate warmup.

    From the reference lr only a minibatch above the reference has one; from a given start any has.
    """
    return warmup != "none" and (batch_size > reference_batch or warmup_start is not None)


def remaining_decay(step: float, *, warmup_steps: float, decay_steps: float) -> float:
    """Return the remaining share of a smooth learning-rate decay: (T - t) / (T - W), from 1 to 0.

    T, the steps until the decay ends, and t are counted from the first step of the run, and W is
    the number of warmup steps. MLPerf's reference divides by T - W + 1 steps, a shift of less than
    one step; NVIDIA's code divides as this function does.

    >>> remaining_decay(60, warmup_steps=20, decay_steps=100)
    0.5
    >>> [remaining_decay(step, warmup_steps=10, decay_steps=10) for step in (9, 10, 11)]
    [1.0, 1.0, 0.0]
    """
    if step <= warmup_steps:
        return 1.0
    if step >= decay_steps:  # also where the decay ends with the warmup
        return 0.0
    return (decay_steps - step) / (decay_steps - warmup_steps)


def value_by_points(epoch: float, points: Sequence[Sequence[float]]) -> float:
    """Return the value at a fractional epoch that is linear between points of (epoch, value).

    The points are in the order of their epochs. Two points of one epoch are a jump, after which the
    second holds. Before the first point its value holds, and from the last on that of the last.

    >>> [value_by_points(epoch, [(0, 1.0), (2, 3.0), (2, 8.0)]) for epoch in (-1, 0, 0.5, 2, 9)]
    [1.0, 1.0, 1.5, 8.0, 8.0]
    """
    epoch = next((at for at in jumps(points) if epoch < at and is_reached(epoch, at)), epoch)
    place = sum(epoch >= point[0] for point in points)
    if place in (0, len(points)):
        return float(points[max(place - 1, 0)][1])
    (begin, before), (end, after) = points[place - 1 : place + 1]
    return before + (after - before) * (epoch - begin) / (end - begin)


def jumps(points: Sequence[Sequence[float]]) -> Iterator[float]:
    """Yield the epochs at which a value by points jumps, for value_by_points."""
    return (one[0] for one, two in pairwise(points) if one[0] == two[0])


def size_by_points(epoch: int, points: Sequence[Sequence[float]], multiple: int) -> int:
    """Return the size of images in an epoch, by points, rounded to a multiple of pixels.

    Halfway between two multiples the even one is taken, as numpy's rounding in FFCV does.

    >>> [size_by_points(epoch, [(11, 160), (13, 192)], 32) for epoch in (10, 11, 12, 13)]
    [160, 160, 192, 192]
    """
    return multiple * round(value_by_points(epoch, points) / multiple)


def learning_rate(
    epoch: float,
    *,
    batch_size: int,
    reference_lr: float = 0.1,
    reference_batch: float = 256,
    scaling: str = "linear",
    warmup: str = "gradual",
    warmup_epochs: float = 5.0,
    warmup_start: float | None = None,
    milestones: Sequence[float] = (30, 60, 80),
    gamma: float = 0.1,
    factors: Sequence[float] = (),
    decay: str = "steps",
    power: float = 2.0,
    end_lr: float = 0.0,
    points: Sequence[Sequence[float]] = (),
    remaining_decay: float = 1.0,
    per: str = "step",
    own_decay: Callable[[float], float] | None = None,
) -> float:
    """Return the scheduled learning rate at a fractional epoch, that of the start of a step.

    Smooth decays depend on `remaining_decay`, the remaining share of the decay. An lr by points is
    not scaled with the minibatch, and has no other warmup than its points.
    `own_decay` is `LrDecay.share` of a decay of the user's own. With `per` = "epoch" the epoch is a
    whole one, whose warmup lr is that of its end.

    >>> learning_rate(0.0, batch_size=8192)  # starts where a minibatch of 256 would
    0.1
    >>> learning_rate(5.0, batch_size=8192)  # and arrives at k times that, k = 8192 / 256
    3.2
    >>> learning_rate(0.0, batch_size=128)  # warmup is for minibatches above the reference
    0.05
    >>> learning_rate(45.0, batch_size=256, decay="polynomial", remaining_decay=0.5)
    0.025
    """
    if decay == "points":
        return value_by_points(epoch, points)
    target = scaled_lr(
        batch_size, reference_lr=reference_lr, reference_batch=reference_batch, scaling=scaling
    )
    rises = has_warmup(
        batch_size, reference_batch=reference_batch, warmup=warmup, warmup_start=warmup_start
    )
    # Only a constant warmup ends with a jump.
    if rises and epoch < warmup_epochs - ROUNDING * (warmup == "constant"):
        start = reference_lr if warmup_start is None else warmup_start
        if per == "epoch":
            epoch = min(epoch + 1, warmup_epochs)
        progress = epoch / warmup_epochs if warmup == "gradual" else 0.0
        return start + (target - start) * progress
    if own_decay:
        return target * float(own_decay(remaining_decay))  # one of numpy is in no checkpoint
    match decay:
        case "polynomial":
            return end_lr + (target - end_lr) * math.pow(remaining_decay, power)
        case "linear":
            return end_lr + (target - end_lr) * remaining_decay
        case "cosine":
            # (1 + cos(pi (1 - remaining_decay))) / 2, without the cancellation at its end.
            return end_lr + (target - end_lr) * math.sin(math.pi / 2 * remaining_decay) ** 2
    latest = epoch + ROUNDING  # is_reached would be one more call for each milestone in each step
    drops = sum(latest >= milestone for milestone in milestones)
    if factors:
        return target * factors[drops - 1] if drops else target
    return target * gamma**drops
