"""Passes to test with."""

import numpy as np
from numpy.typing import NDArray

from lsgd.rules.sampler import Pass


def carrying(workers: int) -> Pass:
    """A pass of training that carries so many workers of one example each."""
    return Pass(0, np.arange(workers), range(workers))


def evaluating(*chunks: NDArray[np.int64]) -> list[Pass]:
    """The passes of an evaluation with these examples."""
    return [Pass(None, ids, range(0), step, "val") for step, ids in enumerate(chunks)]
