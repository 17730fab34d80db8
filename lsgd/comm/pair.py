"""Two processes of a job that send each other tensors, whatever becomes of the others."""

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

from lsgd.comm import Comm, with_peers
from lsgd.errors import PeerLost

PAUSE = 0.005
"""Seconds between two exchanges of addresses."""


class Pair:
    """A connection over gloo, from the CPU to the CPU. Its other end has the other `side`, 0 or 1.

    It is a group of its own, so that the death of a third process does not touch it. Raises
    PeerLost if the other does not come within `join_timeout` seconds.
    """

    def __init__(self, store: Store, side: int, *, timeout: float, join_timeout: float) -> None:
        self.other, self.timeout = 1 - side, timedelta(seconds=timeout)
        with with_peers(RuntimeError):
            self.group: Any = ProcessGroupGloo(store, side, 2, timedelta(seconds=join_timeout))

    def start_send(self, tensor: Tensor) -> Callable[[], None]:
        """Begin to send a tensor, which is not to be changed before the returned function has
        waited for it."""
        with with_peers(RuntimeError):
            return partial(self._wait, self.group.send([tensor], self.other, 0))

    def send(self, tensor: Tensor) -> None:
        """Send a tensor; raises PeerLost if the other is gone."""
        self.start_send(tensor)()

    def receive(self, tensor: Tensor) -> None:
        """Replace a tensor, in place, by one of the same size; raises PeerLost if the other is
        gone, or silent for `timeout` seconds."""
        with with_peers(RuntimeError):
            work = self.group.recv([tensor], self.other, 0)
        self._wait(work)

    def _wait(self, work: Work) -> None:
        with with_peers(RuntimeError):
            work.wait(self.timeout)


def open_pairs(
    comm: Comm, wanted: Sequence[tuple[str, int]], *, timeout: float, join_timeout: float
) -> list[Pair]:
    """The connections of these names and sides, of which other processes open the other ends.

    All processes of the job call it. They tell each other their addresses in few messages to all: a
    client of the job's store for each connection would be slow to come and may look up names.
    """
    addresses = _Addresses()
    pairs: dict[int, Pair] = {}
    failures: list[PeerLost] = []

    def connect(index: int, name: str, side: int) -> None:
        try:
            store = PrefixStore(name, addresses)
            pairs[index] = Pair(store, side, timeout=timeout, join_timeout=join_timeout)
        except PeerLost as error:
            failures.append(error)

    # All at once, since each waits for its other end.
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
    """A store of this process alone, for gloo, which learns from others what these have set."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}
        self._changed = Condition()

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self.own = self.own | {key: value}
        self.learn(self.own)

    def learn(self, known: dict[str, bytes]) -> None:
        """Take what another process has set."""
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
                raise RuntimeError(f"nobody has come to {', '.join(keys)}")
