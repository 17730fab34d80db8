"""Connections between processes of one machine that take as long as those of a cluster.

Each machine of the cluster has a network card, which is busy with a message for its bytes over the
bandwidth, and then with the next one. The cards are numbers in a file that all processes share. A
sender enters a message on both cards and sends ahead of it when it will be through, and the
receiver has it no sooner.

A cluster in virtual time computes nothing but the steps of its workers. So a server answers as of
the moment at which a push was through: the update, and what messages really take, go on while the
answer is on its way and the worker sleeps. Only what takes longer than that comes on top.
"""

import fcntl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import local
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lsgd.comm import Pairing
from lsgd.comm.pair import Pair

T = TypeVar("T")


class Cards:
    """The network cards of machines with these bandwidths in Gbit/s, kept in a file. A message is
    on the way for `latency` seconds besides."""

    def __init__(self, file: Path, gbits: Sequence[float], *, latency: float, duplex: bool) -> None:
        self.rates, self.latency = [each * 1e9 / 8 for each in gbits], latency
        with file.open("ab") as kept:
            kept.truncate(2 * 8 * len(gbits))
        self.busy = np.memmap(file, np.float64, "r+", shape=(2, len(gbits)))
        """Until when each card sends and receives, by time.monotonic; in half duplex the first row
        is both."""
        self.receiving = 1 if duplex else 0
        self.file = file

    def enter(self, moment: float, sender: int, receiver: int, nbytes: int) -> float:
        """Enter a message that leaves at a moment; returns when it will be there."""
        with self.file.open("rb") as lock:  # opened anew, or it kept out no threads
            fcntl.flock(lock, fcntl.LOCK_EX)
            for card in ((0, sender), (self.receiving, receiver)):
                begin = max(moment, float(self.busy[card]))
                self.busy[card] = begin + nbytes / self.rates[card[1]]
            through = max(self.busy[0, sender], self.busy[self.receiving, receiver])
        return float(through) + self.latency


class Moment(local):
    """As of when a thread sends, by time.monotonic: each has its own."""

    value = 0.0


class EmulatedPair:
    """One end of a connection from one machine to another over their cards, or within one."""

    def __init__(self, pair: Pair, cards: Cards, moment: Moment, own: int, other: int) -> None:
        self.pair, self.cards, self.moment = pair, cards, moment
        self.own, self.other = own, other
        self.ready = 0.0
        """When that is computed which this end sends next."""
        self.through = 0.0
        """When the last message was through the cards."""
        self.arrivals: list[float] = []
        """When each message was there."""

    def start_send(self, tensor: Tensor) -> Callable[[], None]:
        """Begin to send a tensor as an answer to what this thread has received last."""
        through = self.moment.value
        if self.own != self.other:
            through = self.cards.enter(through, self.own, self.other, tensor.nbytes)
        # With the moment first, and both kept until they have left.
        parts = [torch.tensor([through], dtype=torch.float64), tensor]
        return partial(_wait, [(part, self.pair.start_send(part)) for part in parts])

    def send(self, tensor: Tensor) -> None:
        """Send a tensor once it is computed."""
        sleep_until(self.ready)
        self.moment.value = time.monotonic()
        self.start_send(tensor)()

    def receive(self, tensor: Tensor) -> None:
        """Replace a tensor by the one that comes, when it is through the cards."""
        through = torch.empty(1, dtype=torch.float64)
        self.pair.receive(through)
        self.pair.receive(tensor)
        self.moment.value = self.through = float(through)
        sleep_until(self.through)
        self.arrivals.append(time.monotonic())


class EmulatedComm:
    """The processes of a job whose pairs go over an emulated network, and nothing else does."""

    def __init__(self, comm: Pairing, cards: Cards, homes: Sequence[int]) -> None:
        self.comm, self.cards, self.homes = comm, cards, homes
        """`homes` has the machine of each server; that of a worker has the worker's number."""
        self.moment = Moment()
        self.library, self.rank, self.world_size = comm.library, comm.rank, comm.world_size
        self.to_servers: list[EmulatedPair] = []
        """The ends of this process's worker."""
        self.to_workers: list[EmulatedPair] = []
        """The ends of this process's server."""

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[Pair]:
        """The connections between workers and servers, which Live names by the two where each
        server has a gate; the worker's side is 1."""
        opened = []
        for (name, side), pair in zip(wanted, self.comm.open_pairs(wanted), strict=True):
            worker, server = map(int, name.split("-"))
            ends = (self.homes[server], worker)
            emulated = EmulatedPair(pair, self.cards, self.moment, ends[side], ends[1 - side])
            (self.to_servers if side else self.to_workers).append(emulated)
            opened.append(emulated)
        return opened  # type: ignore[return-value]

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Begin to sum the tensor, over the real network."""
        return self.comm.start_sum_(tensor, name)

    def broadcast_object(self, value: T) -> T:
        """The value that process 0 has."""
        return self.comm.broadcast_object(value)

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes."""
        return self.comm.gather_objects(value)

    def close(self) -> None:
        """Leave the job."""
        self.comm.close()


def sleep_until(moment: float) -> None:
    """Sleep until this moment of time.monotonic, if it is still to come."""
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def _wait(under_way: Sequence[tuple[Tensor, Callable[[], None]]]) -> None:
    for _, wait in under_way:
        wait()
