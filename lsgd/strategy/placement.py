"""Which parameter server has which parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

SPLIT = 10**6
"""The number of elements from which MXNet splits a parameter over all servers
(MXNET_KVSTORE_BIGARRAY_BOUND)."""
PLACEMENTS = ("round_robin", "greedy", "hash")


@dataclass(frozen=True)
class Slice:
    """Some elements of a parameter, as they lie in memory."""

    parameter: int
    begin: int
    end: int


def place(sizes: Sequence[int], servers: int, placement: str) -> list[list[Slice]]:
    """The slices of each server, for parameters of these numbers of elements.

    round_robin goes through the parameters in their order, as TensorFlow does by default; greedy
    gives each to the server that has least, as its GreedyLoadBalancingStrategy. hash is MXNet's:
    parameter i is on server 9973 i mod S, and one of SPLIT elements or more is split evenly.

    >>> [[s.parameter for s in each] for each in place([6, 1, 4, 1], 2, "greedy")]
    [[0], [1, 2, 3]]
    """
    slices: list[list[Slice]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for parameter, size in enumerate(sizes):
        if placement == "hash" and size >= SPLIT:
            edges = [size * server // servers for server in range(servers + 1)]
            for server, each in enumerate(slices):
                each.append(Slice(parameter, edges[server], edges[server + 1]))
                loads[server] += edges[server + 1] - edges[server]
            continue
        server = {
            "round_robin": parameter % servers,
            "greedy": loads.index(min(loads)),
            "hash": parameter * 9973 % servers,
        }[placement]
        slices[server].append(Slice(parameter, 0, size))
        loads[server] += size
    return slices


def elements(slices: Sequence[Slice]) -> int:
    """The number of elements in these slices."""
    return sum(each.end - each.begin for each in slices)
