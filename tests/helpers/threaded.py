"""Several processes of a job, each played by a thread of this one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Mail = dict[tuple[int, int, int], "SimpleQueue[Tensor]"]
"""The messages under way, by sender, receiver and tag."""
TIMEOUT = 30


class ThreadComm:
    """See Messenger. What is summed is what the tensors held when their sums were started."""

    library = "threads"

    def __init__(self, rank: int, barrier: Barrier, table: list[Any], mail: Mail) -> None:
        self.rank, self.world_size = rank, len(table)
        self.barrier, self.table, self.mail = barrier, table, mail
        self.started: list[str] = []

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        self.started.append(name)
        content, number = tensor.clone(), len(self.started)

        def wait() -> None:
            offers = self.gather_objects((name, number, content))
            assert len({offer[:2] for offer in offers}) == 1, "sums in another order"
            tensor.copy_(sum((offer[2] for offer in offers[1:]), start=offers[0][2]))

        return wait

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Callable[[], None]:
        self._queue(self.rank, receiver, tag).put(tensor.clone())
        return lambda: None

    def start_receive(self, tensor: Tensor, sender: int, tag: int) -> Callable[[], None]:
        queue = self._queue(sender, self.rank, tag)

        def wait() -> None:
            tensor.copy_(queue.get(timeout=TIMEOUT))

        return wait

    def _queue(self, *key: int) -> SimpleQueue[Tensor]:
        return self.mail.setdefault(key, SimpleQueue())

    def broadcast_object(self, value: T) -> T:
        return self.gather_objects(value)[0]

    def gather_objects(self, value: T) -> list[T]:
        self.table[self.rank] = value
        self.barrier.wait(TIMEOUT)
        values = list(self.table)
        self.barrier.wait(TIMEOUT)
        return values

    def close(self) -> None:
        pass


def on_processes(world_size: int, body: Callable[[ThreadComm], T]) -> list[T]:
    """What the body returns on every process of a job of that size."""
    barrier, table, mail = Barrier(world_size), [None] * world_size, {}

    def process(rank: int) -> T:
        try:
            return body(ThreadComm(rank, barrier, table, mail))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(process, rank) for rank in range(world_size)]
    # One that failed by itself says more than those which then waited in vain.
    failures = [error for future in futures if (error := future.exception())]
    for error in sorted(failures, key=lambda e: type(e).__name__ == "BrokenBarrierError"):
        raise error
    return [future.result() for future in futures]


def seeded(seed: int) -> torch.Generator:
    """A generator of its own, since torch's global one is shared by the threads."""
    return torch.Generator().manual_seed(seed)
