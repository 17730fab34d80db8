"""Which examples a step takes, and which worker and process takes which of them.

The rule is one permutation per epoch, divided among the workers (Goyal et al. 2017, remark 4 and
section 5.1): step t takes the next k n examples, worker w its n of them. Everything is a function
of (seed, epoch, step); nothing is consumed, so any step can be asked for at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

ORDER, STEPS = 0, 7
"""The last word of the counter keeps the draws of this file apart from those of augmentation, and
the order of examples from that of steps."""


@dataclass(frozen=True)
class Pass:
    """One forward pass of one process. In training it carries whole workers, all with as many
    examples; in evaluation it carries none, and examples only."""

    epoch: int | None
    """The epoch of the run, or None in evaluation."""
    examples: NDArray[np.int64]
    """Example ids in turns: the first of each worker, then the second of each, and so on.

    So a layer that tells its workers apart, as BN has to, finds them side by side.
    """
    workers: range = range(1)
    """The workers of the run that it carries; each has len(examples) / len(workers)."""
    step: int = 0
    """The step of the epoch that it is a part of; in evaluation its place among the passes of its
    process."""
    split: str = "train"
    """`train`, or the name of the evaluation set that the examples are of."""

    @property
    def by_worker(self) -> NDArray[np.int64]:
        """The examples of each worker, shape (workers, n)."""
        return self.examples.reshape(-1, len(self.workers)).T


def epoch_order(examples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The permutation of all example ids that this epoch goes through, shape (examples,)."""
    return _permutation(examples, ORDER, seed=seed, epoch=epoch)


def length_order(
    lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """The permutation of all example ids in which the examples of a step are of like length, shape
    (examples,): sorted by length, cut into steps of batch_size, and the steps shuffled.

    Which of many examples of a length share a step is drawn for each epoch, as is which ones are
    left for a last, shorter step; so none is always left out where the tail is dropped.
    """
    drawn = epoch_order(len(lengths), seed=seed, epoch=epoch)
    steps = len(lengths) // batch_size
    whole, left = np.split(drawn, [steps * batch_size])
    by_length = whole[np.argsort(lengths[whole], kind="stable")].reshape(steps, batch_size)
    shuffled = by_length[_permutation(steps, STEPS, seed=seed, epoch=epoch)]
    return np.concatenate((shuffled.ravel(), left))


def _permutation(count: int, kind: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    high, low, *_ = philox.words((np.arange(count), epoch, 0, kind), key=seed)
    # Sorting by random keys; a tie of 64-bit keys is broken by the id, on every machine alike.
    return np.argsort((high << np.uint64(32)) | low, kind="stable")


def steps_per_epoch(examples: int, batch_size: int, *, keeps_tail: bool) -> int:
    """The steps really made in an epoch: the last short one only if the tail is kept.

    >>> steps_per_epoch(1281167, 8192, keeps_tail=False)
    156
    """
    return -(-examples // batch_size) if keeps_tail else examples // batch_size


def windows(tokens: int, streams: int, window: int) -> int:
    """The whole windows of each stream, if a text is cut into streams of equal length, of which the
    last token is only guessed.

    >>> windows(929589, streams=20, window=20)
    2323
    """
    return max(0, tokens // streams - 1) // window


def share(count: int, world_size: int, rank: int) -> range:
    """The part of 0 … count-1 that falls to a process: contiguous, sizes differ by one at most.

    >>> [share(8, 3, rank) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 8)]
    """
    each, extra = divmod(count, world_size)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


def step_passes(
    order: NDArray[np.int64],
    *,
    epoch: int,
    step: int,
    workers: int,
    worker_batch: int,
    hosted: range,
    workers_per_pass: int,
) -> list[Pass]:
    """The passes that a process hosting the workers `hosted` makes in a step of the epoch.

    Workers are filled in order, so in a kept tail one may have fewer images, which makes a pass of
    its own, and the ones behind it have none. A process without images makes no pass.
    """
    begin = step * workers * worker_batch
    # Beyond the end of the order, in a kept tail, both edges are its length: no example is left.
    first, last = (
        min(begin + edge * worker_batch, len(order)) for edge in (hosted.start, hosted.stop)
    )
    full, rest = divmod(last - first, worker_batch)
    # The hosted workers are neighbours, so that their examples are one stretch of the order.
    by_worker = order[first : last - rest].reshape(full, worker_batch)
    filled = hosted[:full]
    begins = range(0, full, workers_per_pass)
    carried = [slice(begin, begin + workers_per_pass) for begin in begins]
    passes = [Pass(epoch, by_worker[each].T.ravel(), filled[each], step) for each in carried]
    # A pass of its own, since the workers of one pass have to have equally many examples.
    if rest:
        passes.append(Pass(epoch, order[last - rest : last], hosted[full : full + 1], step))
    return passes
