"""A communicator whose processes are threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
MessageQueues = dict[tuple[int, int, int], "SimpleQueue[Tensor]"]
"""A dict of message queues by sender, receiver and tag."""
TIMEOUT = 300


class ThreadComm:
    """A MessagingComm among threads; a sum uses the values at the start of the all-reduce."""

    library = "threads"

    def __init__(self, rank: int, barrier: Barrier, table: list[Any], mail: MessageQueues) -> None:
        self.rank, self.world_size = rank, len(table)
        self.barrier, self.table, self.mail = barrier, table, mail
        self.started: list[str] = []

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
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


def run_on_threads(world_size: int, body: Callable[[ThreadComm], T]) -> list[T]:
    """Run `body` in `world_size` threads with a communicator each; return the results by rank."""
    barrier, table, mail = Barrier(world_size), [None] * world_size, {}

    def process(rank: int) -> T:
        try:
            return body(ThreadComm(rank, barrier, table, mail))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(process, rank) for rank in range(world_size)]
    # The original error is more useful than the BrokenBarrierError of the threads that waited.
    failures = [error for future in futures if (error := future.exception())]
    for error in sorted(failures, key=lambda e: type(e).__name__ == "BrokenBarrierError"):
        raise error
    return [future.result() for future in futures]


def seeded(seed: int) -> torch.Generator:
    """Return a new generator with this seed, since all threads share torch's global one."""
    return torch.Generator().manual_seed(seed)
