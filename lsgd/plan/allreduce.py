"""The alpha-beta model of an all-reduce: what a sum over many GPUs costs, as formulas.

A message of b bytes over a link takes a + b / B seconds. Letters: p participants, b bytes that each
of them has to sum, a latency of a message in seconds (alpha), B bandwidth in bytes per second and
direction (1 / beta). Adding the numbers up is taken to be free.
"""

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True)
class Link:
    """A connection over which messages are sent."""

    latency: float
    """Seconds per message, whatever its size: a."""
    bandwidth: float
    """Bytes per second in each direction: B."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one sum, in two parts that different remedies shorten."""

    latency: float = 0.0
    """The latencies of its messages, one after the other; the wire is idle meanwhile."""
    transfer: float = 0.0
    """Seconds of its bytes on the wire."""

    @property
    def seconds(self) -> float:
        """Seconds of the sum, where nothing else is on the wire."""
        return self.latency + self.transfer

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.latency + other.latency, self.transfer + other.transfer)


@dataclass(frozen=True)
class GpuServers:
    """Servers of several GPUs each, and what connects them."""

    network: Link
    """The link between servers; the bandwidth is that of a whole server."""
    local: Link
    """The link between the GPUs of a server."""
    host: Link
    """The link between the GPUs of a server and its memory."""
    nccl_from: float
    """Bytes; smaller buffers are summed on the host (Goyal et al. 2017, section 4)."""


def least_transfer(size: float, p: int, bandwidth: float) -> float:
    """Seconds that the bytes of any all-reduce need at least: 2 (p - 1) / p · b / B.

    >>> round(1000 * least_transfer(102.2e6, 32, 50e9 / 8), 1)  # ResNet-50 at 50 Gbit/s, in ms
    31.7
    """
    return 2 * (p - 1) / p * size / bandwidth


def ring(size: float, p: int, link: Link) -> Cost:
    """The bucket algorithm: 2 (p - 1) messages of b / p bytes."""
    return Cost(2 * (p - 1) * link.latency, least_transfer(size, p, link.bandwidth))


def halving_doubling(size: float, p: int, link: Link) -> Cost:
    """Recursive halving and doubling: 2 log2 p messages, as many bytes as the ring.

    Other p than powers of two take 2 ⌈log2 p⌉ messages and the bytes of binary blocks.
    """
    messages = 2 * ceil(log2(p))
    return Cost(messages * link.latency, 2 * halving_bytes(p) * size / link.bandwidth)


def halving_bytes(p: int) -> float:
    """Bytes on the critical path of a reduce-scatter by recursive halving, as a share of b.

    (p - 1) / p for powers of two. Others are split into blocks of powers of two: 44 into 32, 8 and
    4. Each halves by itself, and from the smallest on hands its sums to the next larger block: a
    server of a block of s has b / s bytes to hand over, once it has got those of the smaller one.

    >>> halving_bytes(32), halving_bytes(44)
    (0.96875, 1.125)
    """
    blocks = [1 << i for i in range(p.bit_length()) if p >> i & 1]
    arrived = 0.0
    done = 0.0
    for block in blocks:
        done = max((block - 1) / block, arrived)
        arrived = done + 1 / block
    return done


def reduce_(size: float, p: int, link: Link) -> Cost:
    """A reduction to one of p, along a chain in small parts, as in NCCL: (p - 1) a + b / B.

    A broadcast costs the same, the other way round.
    """
    return Cost((p - 1) * link.latency, size / link.bandwidth) if p > 1 else Cost()


def host_reduce(size: float, p: int, link: Link) -> Cost:
    """A reduction in the server's memory, to which p GPUs copy over one bus: a + p b / B.

    A broadcast costs the same, the other way round.
    """
    return Cost(link.latency, p * size / link.bandwidth) if p > 1 else Cost()


def hierarchical(size: float, servers: int, gpus: int, cluster: GpuServers) -> Cost:
    """The paper's three phases: reduce in each server, sum over servers, broadcast in each.

    Between servers by halving and doubling; with one server that phase is empty.
    """
    if size < cluster.nccl_from:
        inside = host_reduce(size, gpus, cluster.host)
    else:
        inside = reduce_(size, gpus, cluster.local)
    return inside + halving_doubling(size, servers, cluster.network) + inside


def flat_ring(size: float, servers: int, gpus: int, cluster: GpuServers) -> Cost:
    """One ring through all GPUs, in and out of each server once: the slowest link sets the pace."""
    return ring(size, servers * gpus, cluster.network if servers > 1 else cluster.local)


def flat_halving_doubling(size: float, servers: int, gpus: int, cluster: GpuServers) -> Cost:
    """Halving and doubling over all GPUs, first within each server.

    Then each of the g GPUs of a server has b / g bytes to sum with its like in the others, which
    together are b bytes over the network of the server.
    """
    inside = halving_doubling(size, gpus, cluster.local)
    return inside + halving_doubling(size, servers, cluster.network)


ALGORITHMS = {
    "hierarchical": hierarchical,
    "halving-doubling": flat_halving_doubling,
    "ring": flat_ring,
}
"""The all-reduce algorithms, by their name on the command line."""
