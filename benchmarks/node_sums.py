"""The process of a job of `benchmarks.nodes`: it times all-reduces with those of other nodes."""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.virtual_nodes import set_bandwidth
from lsgd.comm import Comm, all_reduce_, joined
from lsgd.comm.torch import TorchComm
from lsgd.recipe import CommSettings

MESSAGES = 50
"""The round trips of which the latency is the median."""
LINK_BYTES = 4 * 10**6
"""The bytes that are sent one way to find a link's bandwidth."""
PAUSE = 0.5
"""The seconds from the choice of an instant to begin at until all processes begin."""


def main(argv: Sequence[str]) -> None:
    """Time all-reduces of some sizes at some bandwidths; process 0 writes them to a JSON file.

    Arguments: the library, the file, the number of rounds, the bandwidths in Mbit/s and the sizes
    in bytes, these two with commas, and the share of a bandwidth that the last node has.
    """
    library, file, rounds, speeds, sizes, slow_link = argv
    measured = []
    with joined(CommSettings(library=library, timeout=300), torch.device("cpu")) as comm:
        for mbits in map(int, speeds.split(",")):
            if comm.rank == 0:
                *others, last = range(comm.world_size)
                for rank in others:
                    set_bandwidth(f"node{rank}", mbits)
                set_bandwidth(f"node{last}", mbits * float(slow_link))
            all_reduce_(comm, torch.zeros(1))
            found: dict[str, Any] = {"library": comm.library, "processes": comm.world_size}
            found["mbits"] = mbits
            if isinstance(comm, TorchComm):
                found |= measure_link(comm)
            found["seconds"] = {
                size: measure_all_reduce(comm, int(size), int(rounds)) for size in sizes.split(",")
            }
            measured.append(found)
    if comm.rank == 0:
        Path(file).write_text(json.dumps(measured))


def measure_link(comm: TorchComm) -> dict[str, float]:
    """Measure half a round trip in seconds, and the bits per second from process 0 to process 1."""
    latencies, word = [], torch.zeros(1)
    for _ in range(MESSAGES):
        begin = time.perf_counter()
        _exchange(comm, word, word)
        latencies.append((time.perf_counter() - begin) / 2)
    begin = time.perf_counter()
    _exchange(comm, torch.zeros(LINK_BYTES // 4), word)
    seconds = time.perf_counter() - begin
    return {"latency": statistics.median(latencies), "bits_per_second": 8 * LINK_BYTES / seconds}


def _exchange(comm: TorchComm, there: torch.Tensor, back: torch.Tensor) -> None:
    """Send a tensor from process 0 to process 1, and another one back."""
    if comm.rank == 0:
        comm.start_send(there, 1, 0)()
        comm.start_receive(back, 1, 0)()
    elif comm.rank == 1:
        comm.start_receive(there, 0, 0)()
        comm.start_send(back, 0, 0)()


def measure_all_reduce(comm: Comm, size: int, rounds: int) -> list[float]:
    """Return the seconds of each all-reduce of `size` bytes, from the last start to the last end.

    All processes begin at the same instant of the clock that they share, since the end of an
    all-reduce or a broadcast reaches them one after the other, some latencies apart.
    """
    tensor = torch.ones(size // 4)
    times: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        tensor.fill_(1)
        start = comm.broadcast_object(time.perf_counter() + PAUSE)
        time.sleep(max(0.0, start - time.perf_counter()))
        begin = time.perf_counter()
        all_reduce_(comm, tensor)
        times.append((begin, time.perf_counter()))
        assert float(tensor.min()) == float(tensor.max()) == comm.world_size
    of_all = comm.gather_objects(times[1:])  # the first one opens connections
    return [
        max(end for _, end in each) - max(begin for begin, _ in each)
        for each in zip(*of_all, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
