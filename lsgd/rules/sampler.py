"""The distribution of examples over steps, workers and processes.

There is one permutation per epoch, divided among the workers (Goyal et al. 2017, remark 4 and
section 5.1): step t takes the next k n examples, worker w its n of them. Everything is a pure
function of (seed, epoch, step), so any step can be computed without the ones before it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

ORDER_COUNTER, STEPS_COUNTER = 0, 7
"""The last element of the counter for the order of examples and that of steps.

It separates their draws from each other and from those of augmentation.
"""


@dataclass(frozen=True)
class MicroBatch:
    """The ids of the examples in one forward pass of a process, with their workers and step.

    In training the pass carries whole workers, all with the same number of examples; in evaluation
    only examples.
    """

    epoch: int | None
    """The epoch of the run; None in evaluation."""
    examples: NDArray[np.int64]
    """The example ids, interleaved: the first of each worker, then the second of each, and so on.

    So a layer that treats workers separately, such as BN, can reshape them without a copy.
    """
    workers: range = range(1)
    """The run's workers in this micro-batch; each has len(examples) / len(workers) examples."""
    step: int = 0
    """The step of the epoch; in evaluation the position among the micro-batches of the process."""
    split: str = "train"
    """The split of the examples: `train`, or the name of an evaluation set."""
    side: int = 0
    """The side of the images, in pixels; 0 for data.image_size."""
    crop_ratio: float = 0.0
    """The side of evaluated images over the resized short side; 0 for data.crop_ratio."""
    aspect: float = 0.0
    """The aspect ratio of the rectangle of evaluated images; 0 for a square."""

    @property
    def by_worker(self) -> NDArray[np.int64]:
        """The example ids of each worker, shape (workers, n)."""
        return self.examples.reshape(-1, len(self.workers)).T


def epoch_order(examples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the random order of all example ids in an epoch, shape (examples,)."""
    return _permutation(examples, ORDER_COUNTER, seed=seed, epoch=epoch)


def length_order(
    lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Return an order of all example ids in which each step has examples of similar length.

    The examples are sorted by length, cut into steps of batch_size, and the steps shuffled; the
    shape is (examples,). Which examples of equal length share a step, and which are in the last,
    shorter step, is drawn anew for each epoch, so that no example is always dropped with the tail.
    """
    drawn = epoch_order(len(lengths), seed=seed, epoch=epoch)
    steps = len(lengths) // batch_size
    whole, left = np.split(drawn, [steps * batch_size])
    by_length = whole[np.argsort(lengths[whole], kind="stable")].reshape(steps, batch_size)
    shuffled = by_length[_permutation(steps, STEPS_COUNTER, seed=seed, epoch=epoch)]
    return np.concatenate((shuffled.ravel(), left))


def _permutation(count: int, kind: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    high, low, *_ = philox.uint32_blocks((np.arange(count), epoch, 0, kind), key=seed)
    # Sorting by random keys; a stable sort breaks ties of 64-bit keys by id on every machine.
    return np.argsort((high << np.uint64(32)) | low, kind="stable")


def steps_per_epoch(examples: int, batch_size: int, *, keeps_tail: bool) -> int:
    """Return the number of training steps in an epoch; a short last one counts if the tail is kept.

    >>> steps_per_epoch(1281167, 8192, keeps_tail=False)
    156
    """
    return -(-examples // batch_size) if keeps_tail else examples // batch_size


def windows_per_stream(tokens: int, streams: int, window: int) -> int:
    """Return the number of whole windows per stream of a text that is cut into equal streams.

    The last token of a stream is only a target.

    >>> windows_per_stream(929589, streams=20, window=20)
    2323
    """
    return max(0, tokens // streams - 1) // window


def contiguous_share(count: int, world_size: int, rank: int) -> range:
    """Return the contiguous range of 0 … count-1 for a process; sizes differ by at most one.

    >>> [contiguous_share(8, 3, rank) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 8)]
    """
    each, extra = divmod(count, world_size)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


def step_micro_batches(
    order: NDArray[np.int64],
    *,
    epoch: int,
    step: int,
    workers: int,
    worker_batch: int,
    hosted: range,
    workers_per_pass: int,
) -> list[MicroBatch]:
    """Return a process's training micro-batches in a step of an epoch, for the workers it hosts.

    Workers are filled in order. In a kept tail one worker may have fewer examples, which make a
    micro-batch of their own, and those after it have none. A process without examples has no
    micro-batch.
    """
    begin = step * workers * worker_batch
    # In a kept tail, both edges of a worker behind the end of the order are its length.
    first, last = (
        min(begin + edge * worker_batch, len(order)) for edge in (hosted.start, hosted.stop)
    )
    full, rest = divmod(last - first, worker_batch)
    # The hosted workers are contiguous, and so are their examples in the order.
    by_worker = order[first : last - rest].reshape(full, worker_batch)
    filled = hosted[:full]
    begins = range(0, full, workers_per_pass)
    carried = [slice(begin, begin + workers_per_pass) for begin in begins]
    passes = [MicroBatch(epoch, by_worker[each].T.ravel(), filled[each], step) for each in carried]
    # A separate one, since all workers of a micro-batch have the same number of examples.
    if rest:
        passes.append(MicroBatch(epoch, order[last - rest : last], hosted[full : full + 1], step))
    return passes
