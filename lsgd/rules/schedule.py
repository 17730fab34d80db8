"""Learning rate as a function of the epoch: linear scaling, warmup, drops by ten.

Goyal et al. 2017: the linear scaling rule is section 2.1, the warmups are section 2.2, the drops
at 30, 60 and 80 of 90 epochs are section 5.1.
"""

import math
from collections.abc import Sequence

SCALINGS = ("linear", "sqrt", "none")
WARMUPS = ("gradual", "constant", "none")


def scaled_lr(
    batch_size: int, *, reference_lr: float, reference_batch: float, scaling: str
) -> float:
    """The learning rate for a minibatch of `batch_size`, before any warmup or drop.

    >>> scaled_lr(8192, reference_lr=0.1, reference_batch=256, scaling="linear")
    3.2
    """
    ratio = batch_size / reference_batch
    return reference_lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def learning_rate(
    epoch: float,
    *,
    batch_size: int,
    reference_lr: float = 0.1,
    reference_batch: float = 256,
    scaling: str = "linear",
    warmup: str = "gradual",
    warmup_epochs: float = 5.0,
    milestones: Sequence[float] = (30, 60, 80),
    gamma: float = 0.1,
) -> float:
    """Learning rate at a (fractional) epoch; per step, since `epoch` is that of the step's start.

    >>> learning_rate(0.0, batch_size=8192)  # starts where a minibatch of 256 would
    0.1
    >>> learning_rate(5.0, batch_size=8192)  # and arrives at k times that, k = 8192 / 256
    3.2
    >>> learning_rate(0.0, batch_size=128)  # warmup is for minibatches above the reference
    0.05
    """
    target = scaled_lr(
        batch_size, reference_lr=reference_lr, reference_batch=reference_batch, scaling=scaling
    )
    if warmup != "none" and batch_size > reference_batch and epoch < warmup_epochs:
        progress = epoch / warmup_epochs if warmup == "gradual" else 0.0
        return reference_lr + (target - reference_lr) * progress
    return target * gamma ** sum(epoch >= milestone for milestone in milestones)
