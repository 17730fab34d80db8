"""The share of each process in the workers and in the examples of each step."""

from collections.abc import Iterator, Sized
from functools import lru_cache, partial
from numbers import Integral

from torch.utils.data import Sampler

from lsgd.comm import Comm, comm_over
from lsgd.errors import UsageError
from lsgd.rules import sampler


class VirtualSampler(Sampler[list[int]]):
    """A batch sampler that yields, for each step, the examples of the workers of this process.

    They are ordered by worker: the first `worker_batch` are those of the first one.
    """

    def __init__(
        self, dataset: Sized, *, workers: int, worker_batch: int, seed: int, group: object
    ) -> None:
        seed = whole_number("seed", seed)
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                f"the dataset, a {type(dataset).__name__}, has no length, and the sampler orders "
                "numbered examples; pass one with __len__ and __getitem__"
            )
        self.workers = workers = whole_number("workers", workers, 1)
        self.worker_batch = worker_batch = whole_number("worker_batch", worker_batch, 1)
        self.hosted = hosted_workers(comm_over(group), workers)
        self.steps_per_epoch = sampler.steps_per_epoch(
            len(dataset), workers * worker_batch, keeps_tail=False
        )
        if not self.steps_per_epoch:
            raise UsageError(
                f"the dataset has {len(dataset)} examples, too few for a step of workers x "
                f"worker_batch = {workers} x {worker_batch}; use fewer workers"
            )
        self._order = lru_cache(maxsize=2)(partial(sampler.epoch_order, len(dataset), seed=seed))
        self.epoch = self._first = 0

    @property
    def sampler(self) -> "VirtualSampler":
        """The sampler itself: trainers set the epoch of a batch sampler's `sampler`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, of the next iteration.

        It starts with the epoch's first step, unless `seek` has named a later one of this epoch.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch, self._first = epoch, 0

    def seek(self, steps: int) -> None:
        """Continue after this many steps of the run, such as those of a VirtualStep.

        It sets the epoch, and the step with which the next iteration starts.
        """
        self.epoch, self._first = divmod(whole_number("steps", steps, 0), self.steps_per_epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the example ids of this process in each remaining step of the epoch."""
        order, first, self._first = self._order(epoch=self.epoch), self._first, 0
        for step in range(first, self.steps_per_epoch):
            [share] = sampler.step_micro_batches(
                order,
                epoch=self.epoch,
                step=step,
                workers=self.workers,
                worker_batch=self.worker_batch,
                hosted=self.hosted,
                workers_per_pass=len(self.hosted),
            )
            yield share.by_worker.ravel().tolist()

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch."""
        return self.steps_per_epoch


def hosted_workers(comm: Comm, workers: int) -> range:
    """Return the numbers of the virtual workers that this process hosts.

    Raises UsageError if there are fewer workers than processes.
    """
    if comm.world_size > workers:
        raise UsageError(
            f"{comm.world_size} processes have only workers={workers} to host; start at most "
            f"{workers} processes, or use more workers of fewer images each"
        )
    return sampler.contiguous_share(workers, comm.world_size, comm.rank)


def whole_number(name: str, value: object, at_least: int | None = None) -> int:
    """Return a whole number, such as one of numpy, as an int; raise UsageError for other values.

    It is also raised for a number below `at_least`.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} must be a whole number, such as {at_least or 0}")
    if at_least is not None and int(value) < at_least:
        raise UsageError(f"{name}={value} must be {at_least} or more")
    return int(value)
