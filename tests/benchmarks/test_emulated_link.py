import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.emulated_link import EmulatedPair, NetworkCards, SendTime

GIGABYTE = 10**9


def cards(
    folder: Path, gbits: float = 8, *, duplex: bool = False, latency: float = 0
) -> NetworkCards:
    """Of two workers of 8 Gbit/s, a GB/s, and a server of twice as many."""
    return NetworkCards(folder / "cards", [gbits, gbits, 2 * gbits], latency=latency, duplex=duplex)


def test_a_message_takes_the_slower_card_and_then_the_next_begins(tmp_path: Path) -> None:
    """On each card in turn, whichever process has entered it."""
    first, second = cards(tmp_path, latency=0.25), cards(tmp_path, latency=0.25)
    assert first.reserve(100, 0, 2, GIGABYTE) == 101.25
    # The server's card was busy for half a second, and that of the other worker is free.
    assert second.reserve(100, 1, 2, GIGABYTE) == 101.25
    assert first.reserve(100, 2, 0, GIGABYTE) == 102.25
    assert second.reserve(110, 0, 2, GIGABYTE) == 111.25


@pytest.mark.parametrize(("duplex", "end"), [(False, 102), (True, 101)])
def test_a_machine_sends_and_receives_at_once_in_full_duplex(
    duplex: bool, end: float, tmp_path: Path
) -> None:
    own = cards(tmp_path, duplex=duplex)
    assert own.reserve(100, 0, 2, GIGABYTE) == 101
    assert own.reserve(100, 2, 0, GIGABYTE) == end


class Ends:
    """Two ends of a connection within this process."""

    def __init__(self, out: "SimpleQueue[Tensor]", into: "SimpleQueue[Tensor]") -> None:
        self.out, self.into = out, into

    def start_send(self, tensor: Tensor) -> Any:
        self.out.put(tensor.clone())
        return lambda: None

    def receive(self, tensor: Tensor) -> None:
        tensor.copy_(self.into.get(timeout=900))


def pair_of(folder: Path, own: int, other: int) -> tuple[EmulatedPair, EmulatedPair]:
    """The ends of a connection between two machines, as two processes have them."""
    there, back = SimpleQueue(), SimpleQueue()
    ends: list[Any] = [Ends(there, back), Ends(back, there)]
    first = EmulatedPair(ends[0], cards(folder, 0.008), SendTime(), own, other)
    return first, EmulatedPair(ends[1], cards(folder, 0.008), SendTime(), other, own)


def test_an_answer_leaves_when_the_push_was_through(tmp_path: Path) -> None:
    """What a server does with it, here for 30 ms, goes on meanwhile, at a MB/s."""
    worker, server = pair_of(tmp_path, 0, 2)
    message = torch.zeros(100_000, dtype=torch.uint8)
    begin = time.monotonic()
    worker.send(message)
    server.receive(message)
    assert time.monotonic() - begin >= 0.1
    time.sleep(0.03)
    server.start_send(message)()
    worker.receive(message)
    assert worker.delivered_at - begin >= 0.2
    assert worker.delivered_at - server.delivered_at == pytest.approx(0.1, abs=1e-6)
    assert worker.received_at[-1] >= worker.delivered_at


def test_a_push_leaves_once_it_is_computed(tmp_path: Path) -> None:
    """Within a machine it is there at once."""
    worker, server = pair_of(tmp_path, 0, 0)
    worker.computed_at = time.monotonic() + 0.02
    worker.send(torch.ones(1))
    server.receive(message := torch.zeros(1))
    assert message == 1
    assert worker.computed_at <= server.delivered_at <= server.received_at[-1]
