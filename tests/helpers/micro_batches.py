"""Micro-batches for tests."""

import numpy as np
from numpy.typing import NDArray

from lsgd.rules.sampler import MicroBatch


def training_micro_batch(workers: int) -> MicroBatch:
    """Return a training micro-batch of `workers` workers with one example each."""
    return MicroBatch(0, np.arange(workers), range(workers))


def evaluation_micro_batches(*chunks: NDArray[np.int64]) -> list[MicroBatch]:
    """Return the micro-batches of an evaluation, one for each array of example ids."""
    return [MicroBatch(None, ids, range(0), step, "val") for step, ids in enumerate(chunks)]
