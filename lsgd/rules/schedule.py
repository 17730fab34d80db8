"""Learning rate as a function of the epoch: linear scaling, warmup, drops by ten, smooth decays.

Goyal et al. 2017: the linear scaling rule is section 2.1, the warmups are section 2.2, the drops
at 30, 60 and 80 of 90 epochs are section 5.1. The polynomial decay is that of You et al. 2017,
algorithm 1, as MLPerf has it behind a warmup; the cosine is that of Loshchilov and Hutter 2017.
"""

import math
from collections.abc import Sequence

SCALINGS = ("linear", "sqrt", "none")
WARMUPS = ("gradual", "constant", "none")
DECAYS = ("steps", "polynomial", "linear", "cosine")


def scaled_lr(
    batch_size: int, *, reference_lr: float, reference_batch: float, scaling: str
) -> float:
    """The learning rate for a minibatch of `batch_size`, before any warmup or drop.

    >>> scaled_lr(8192, reference_lr=0.1, reference_batch=256, scaling="linear")
    3.2
    """
    ratio = batch_size / reference_batch
    return reference_lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def warms_up(
    batch_size: int, *, reference_batch: float, warmup: str, warmup_start: float | None
) -> bool:
    """Whether a minibatch has a warmup: from the reference only one above it, from a number any."""
    return warmup != "none" and (batch_size > reference_batch or warmup_start is not None)


def decay_left(step: float, *, warmup_steps: float, decay_steps: float) -> float:
    """The share of a smooth decay that is still to come: (T - t) / (T - W), from 1 to 0.

    T, the steps until the decay ends, and t are counted from the first step of the run, and W are
    the steps of warmup. MLPerf's reference divides by T - W + 1 steps, which is later by less than
    one step; NVIDIA's code divides as it is done here.

    >>> decay_left(60, warmup_steps=20, decay_steps=100)
    0.5
    """
    if step <= warmup_steps:
        return 1.0
    return max(0.0, (decay_steps - step) / (decay_steps - warmup_steps))


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
    left: float = 1.0,
) -> float:
    """Learning rate at a (fractional) epoch; per step, since `epoch` is that of the step's start.

    A decay other than by steps goes by `left`, its share that is still to come.

    >>> learning_rate(0.0, batch_size=8192)  # starts where a minibatch of 256 would
    0.1
    >>> learning_rate(5.0, batch_size=8192)  # and arrives at k times that, k = 8192 / 256
    3.2
    >>> learning_rate(0.0, batch_size=128)  # warmup is for minibatches above the reference
    0.05
    >>> learning_rate(45.0, batch_size=256, decay="polynomial", left=0.5)
    0.025
    """
    target = scaled_lr(
        batch_size, reference_lr=reference_lr, reference_batch=reference_batch, scaling=scaling
    )
    rises = warms_up(
        batch_size, reference_batch=reference_batch, warmup=warmup, warmup_start=warmup_start
    )
    if rises and epoch < warmup_epochs:
        start = reference_lr if warmup_start is None else warmup_start
        progress = epoch / warmup_epochs if warmup == "gradual" else 0.0
        return start + (target - start) * progress
    match decay:
        case "polynomial":
            return end_lr + (target - end_lr) * math.pow(left, power)
        case "linear":
            return end_lr + (target - end_lr) * left
        case "cosine":
            # (1 + cos(pi (1 - left))) / 2, without the cancellation at its end.
            return end_lr + (target - end_lr) * math.sin(math.pi / 2 * left) ** 2
    drops = sum(epoch >= milestone for milestone in milestones)
    if factors:
        return target * factors[drops - 1] if drops else target
    return target * gamma**drops
