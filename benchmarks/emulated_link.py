"""Connections between processes of one machine with the delays of a cluster's network.

Each machine of the cluster has a network card, which is busy with a message for its bytes divided
by the bandwidth, and then with the next message. The state of the cards is an array in a file that
all processes share. A sender reserves time for a message on both cards and sends the time of its
delivery ahead of it; the receiver waits until then.

In virtual time only the steps of workers take computing time. So a server's reply is timed from the
moment when the push was delivered: the update and the real transfers go on while the reply is under
way and the worker sleeps. Only what takes longer than that delays a step.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import local
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lsgd.comm import PairwiseComm
from lsgd.comm.pair import ProcessPair
from lsgd.files import locked

T = TypeVar("T")


class NetworkCards:
    """Network cards of several machines, whose busy times are kept in a shared file.

    The bandwidths are in Gbit/s, the latency of a message in seconds.
    """

    def __init__(self, file: Path, gbits: Sequence[float], *, latency: float, duplex: bool) -> None:
        self.bytes_per_second, self.latency = [each * 1e9 / 8 for each in gbits], latency
        with file.open("ab") as kept:
            kept.truncate(2 * 8 * len(gbits))
        self.busy_until = np.memmap(file, np.float64, "r+", shape=(2, len(gbits)))
        """The times of time.monotonic until which each card sends (row 0) and receives (row 1).

        In half duplex, row 0 is for both directions.
        """
        self.receiving = 1 if duplex else 0
        self.file = file

    def reserve(self, moment: float, sender: int, receiver: int, nbytes: int) -> float:
        """Reserve both cards for a message sent at `moment`, and return its delivery time."""
        with locked(self.file):  # opened anew: a shared file does not lock out threads
            for card in ((0, sender), (self.receiving, receiver)):
                begin = max(moment, float(self.busy_until[card]))
                self.busy_until[card] = begin + nbytes / self.bytes_per_second[card[1]]
            through = max(self.busy_until[0, sender], self.busy_until[self.receiving, receiver])
        return float(through) + self.latency


class SendTime(local):
    """The thread-local time from which a thread's messages count as sent, by time.monotonic."""

    value = 0.0


class EmulatedPair:
    """One end of a connection between two machines over their cards, or within one machine."""

    def __init__(
        self, pair: ProcessPair, cards: NetworkCards, moment: SendTime, own: int, other: int
    ) -> None:
        self.pair, self.cards, self.send_time = pair, cards, moment
        self.own, self.other = own, other
        self.computed_at = 0.0
        """The time at which the next message of this end is computed."""
        self.delivered_at = 0.0
        """The time at which the last received message was delivered."""
        self.received_at: list[float] = []
        """The times at which messages were received."""

    def start_send(self, tensor: Tensor) -> Callable[[], None]:
        """Start to send a tensor, timed as the reply to this thread's last received message."""
        through = self.send_time.value
        if self.own != self.other:
            through = self.cards.reserve(through, self.own, self.other, tensor.nbytes)
        # The delivery time goes first; both tensors are kept until they have been sent.
        parts = [torch.tensor([through], dtype=torch.float64), tensor]
        return partial(_wait, [(part, self.pair.start_send(part)) for part in parts])

    def send(self, tensor: Tensor) -> None:
        """Send a tensor once its emulated computation is over."""
        sleep_until(self.computed_at)
        self.send_time.value = time.monotonic()
        self.start_send(tensor)()

    def receive(self, tensor: Tensor) -> None:
        """Receive a message into the tensor, no sooner than its emulated delivery."""
        through = torch.empty(1, dtype=torch.float64)
        self.pair.receive(through)
        self.pair.receive(tensor)
        self.send_time.value = self.delivered_at = float(through)
        sleep_until(self.delivered_at)
        self.received_at.append(time.monotonic())


class EmulatedComm:
    """A Comm whose pairwise connections go over an emulated network, and its collectives do not."""

    def __init__(
        self, comm: PairwiseComm, cards: NetworkCards, server_machines: Sequence[int]
    ) -> None:
        self.comm, self.cards, self.server_machines = comm, cards, server_machines
        """The machine of each server; the machine of a worker has the worker's number."""
        self.send_time = SendTime()
        self.library, self.rank, self.world_size = comm.library, comm.rank, comm.world_size
        self.to_servers: list[EmulatedPair] = []
        """The ends of the connections of this process's worker."""
        self.to_workers: list[EmulatedPair] = []
        """The ends of the connections of this process's server."""

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[ProcessPair]:
        """Open the connections between workers and servers, with emulated delays.

        Live names a connection WORKER-SERVER, where each server has an AdmissionGate; side 1 is the
        worker's.
        """
        opened = []
        for (name, side), pair in zip(wanted, self.comm.open_pairs(wanted), strict=True):
            worker, server = map(int, name.split("-"))
            ends = (self.server_machines[server], worker)
            emulated = EmulatedPair(pair, self.cards, self.send_time, ends[side], ends[1 - side])
            (self.to_servers if side else self.to_workers).append(emulated)
            opened.append(emulated)
        return opened  # type: ignore[return-value]

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Start to sum the tensor over all processes, on the real network."""
        return self.comm.start_all_reduce_(tensor, name)

    def broadcast_object(self, value: T) -> T:
        """Return process 0's value on every process."""
        return self.comm.broadcast_object(value)

    def gather_objects(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        return self.comm.gather_objects(value)

    def close(self) -> None:
        """Close the connections of the job."""
        self.comm.close()


def sleep_until(moment: float) -> None:
    """Sleep until this time of time.monotonic, if it is in the future."""
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def _wait(under_way: Sequence[tuple[Tensor, Callable[[], None]]]) -> None:
    for _, wait in under_way:
        wait()
