"""Connections between two processes of a job, which work whatever happens to other processes."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from threading import Condition, Thread
from typing import Any

from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    Work,
)

from lsgd.comm import Comm, communicating
from lsgd.errors import PeerLostError

PAUSE = 0.005
"""Seconds between two exchanges of addresses."""


class ProcessPair:
    """Connection between two processes over gloo, from CPU to CPU.

    The two ends have side 0 and 1. It is a process group of its own, so the death of a third
    process does not affect it. Raises PeerLostError if the other end does not join within
    `join_timeout` seconds.
    """

    def __init__(self, store: Store, side: int, *, timeout: float, join_timeout: float) -> None:
        self.other, self.timeout = 1 - side, timedelta(seconds=timeout)
        with communicating(RuntimeError):
            self.group: Any = ProcessGroupGloo(store, side, 2, timedelta(seconds=join_timeout))

    def start_send(self, tensor: Tensor) -> Callable[[], None]:
        """Start sending a tensor, which must not change; return a function that awaits the end."""
        with communicating(RuntimeError):
            return partial(self._wait, self.group.send([tensor], self.other, 0))

    def send(self, tensor: Tensor) -> None:
        """Send a tensor to the other process; raise PeerLostError if that is lost."""
        self.start_send(tensor)()

    def receive(self, tensor: Tensor) -> None:
        """Receive a tensor from the other process in place, into a tensor of the same size.

        Raises PeerLostError if the other process is lost, or sends nothing for `timeout` seconds.
        """
        with communicating(RuntimeError):
            work = self.group.recv([tensor], self.other, 0)
        self._wait(work)

    def _wait(self, work: Work) -> None:
        with communicating(RuntimeError):
            work.wait(self.timeout)


def open_pairs(
    comm: Comm, wanted: Sequence[tuple[str, int]], *, timeout: float, join_timeout: float
) -> list[ProcessPair]:
    """Open several two-process connections over gloo, each given by its name and side.

    The side is that of this process's end. Other processes open the other ends meanwhile, and all
    processes of the job call it. They exchange their addresses in a few collective messages, since
    a client of the job's store for each connection would be slow to connect and may look up names.
    """
    addresses = _Addresses()
    pairs: dict[int, ProcessPair] = {}
    failures: list[PeerLostError] = []

    def connect(index: int, name: str, side: int) -> None:
        try:
            store = PrefixStore(name, addresses)
            pairs[index] = ProcessPair(store, side, timeout=timeout, join_timeout=join_timeout)
        except PeerLostError as error:
            failures.append(error)

    # In parallel, since each waits for its other end.
    threads = [
        Thread(target=connect, args=(index, *each), daemon=True)
        for index, each in enumerate(wanted)
    ]
    for thread in threads:
        thread.start()
    while True:
        waits = any(thread.is_alive() for thread in threads)
        everyone = comm.gather_objects((waits, addresses.own))
        for _, known in everyone:
            addresses.learn(known)
        if not any(waits for waits, _ in everyone):
            break
        time.sleep(PAUSE)
    if failures:
        raise failures[0]
    return [pairs[index] for index in range(len(wanted))]


class _Addresses(Store):
    """In-memory store of gloo's addresses, which also receives those of the other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}
        self._changed = Condition()

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self.own = self.own | {key: value}
        self.learn(self.own)

    def learn(self, known: dict[str, bytes]) -> None:
        """Add the store entries of another process, and wake waiting threads."""
        with self._changed:
            self._known |= known
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._known)
            return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta = timedelta(days=1)) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(key in self._known for key in keys), timeout.total_seconds()
            ):
                raise RuntimeError(f"no process has joined {', '.join(keys)}")
