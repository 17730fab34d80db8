"""The alpha-beta model of an all-reduce: its cost over many GPUs, and its overlap with backward.

A message of b bytes over a link takes a + b / B seconds. Letters: p participants, b bytes that each
of them contributes, a latency of a message in seconds (alpha), B bandwidth in bytes per second and
direction (1 / beta). Arithmetic is assumed to take no time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2

SEGMENT = 2**20
"""The bytes of the largest segment that gloo sends at a time."""


@dataclass(frozen=True)
class NetworkLink:
    """A network link with a latency and a bandwidth."""

    latency: float
    """Seconds per message of any size: a."""
    bandwidth: float
    """Bytes per second in each direction: B."""


@dataclass(frozen=True)
class Cost:
    """The modelled seconds of one collective, split into latency and transfer."""

    latency: float = 0.0
    """The sum of the latencies of its messages, during which the wire is idle."""
    transfer: float = 0.0
    """The seconds of its bytes on the wire."""

    @property
    def seconds(self) -> float:
        """The total modelled seconds of the collective on an otherwise idle wire."""
        return self.latency + self.transfer

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.latency + other.latency, self.transfer + other.transfer)


@dataclass(frozen=True)
class GpuServers:
    """The network links of a cluster whose servers have several GPUs each."""

    network: NetworkLink
    """The link between servers; the bandwidth is that of a whole server."""
    local: NetworkLink
    """The link between the GPUs of a server."""
    host: NetworkLink
    """The link between the GPUs of a server and its host memory."""
    nccl_from: float
    """The smallest buffer in bytes that is reduced by NCCL (Goyal et al. 2017, section 4).
    Smaller buffers are reduced on the host."""


def least_transfer(size: float, p: int, bandwidth: float) -> float:
    """Return the lower bound on the transfer seconds of any all-reduce: 2 (p - 1) / p · b / B.

    >>> round(1000 * least_transfer(102.2e6, 32, 50e9 / 8), 1)  # ResNet-50 at 50 Gbit/s, in ms
    31.7
    """
    return 2 * (p - 1) / p * size / bandwidth


def ring(size: float, p: int, link: NetworkLink) -> Cost:
    """Return the modelled time of a ring all-reduce: 2 (p - 1) messages of b / p bytes."""
    return Cost(2 * (p - 1) * link.latency, least_transfer(size, p, link.bandwidth))


def gloo_ring(size: float, p: int, link: NetworkLink) -> Cost:
    """Return the modelled time of gloo's ring all-reduce, which torch.distributed and Horovod use.

    Gloo sends a segment once its receiver has announced that it waits for it, so that each takes
    two latencies, and has two segments in flight: 4 (p - 1) latencies for few bytes, where `ring`
    has 2 (p - 1). Each of the p shares has at least two segments of at most SEGMENT bytes. The wire
    is busy throughout, but for the first and last message of both phases, if a segment takes two
    latencies or more. Source: gloo/allreduce.cc and gloo/transport/tcp/pair.cc, 2026.

    >>> [round(gloo_ring(0, p, NetworkLink(1.0, 1.0)).latency) for p in (2, 4, 8)]
    [4, 12, 28]
    """
    if p == 1:
        return Cost()
    segments = max(2, ceil(size / SEGMENT / p)) * (p - 1)  # that a process sends in each phase
    transfer = least_transfer(size, p, link.bandwidth)
    pairs, of_segment = ceil(segments / 2), transfer / 2 / segments
    # The second segment of a pair leaves while the first one travels.
    idle = 2 * pairs * link.latency - (pairs - 1) * of_segment
    return Cost(2 * max(2 * link.latency, idle), transfer)


def halving_doubling(size: float, p: int, link: NetworkLink) -> Cost:
    """Return the modelled time of an all-reduce by recursive halving and doubling.

    It has 2 log2 p messages, and as many bytes as the ring. Other p than powers of two take 2 ⌈log2
    p⌉ messages and the bytes of binary blocks.
    """
    messages = 2 * ceil(log2(p))
    return Cost(messages * link.latency, 2 * halving_bytes(p) * size / link.bandwidth)


def halving_bytes(p: int) -> float:
    """Return the bytes on the critical path of a recursive-halving reduce-scatter, as a share of b.

    It is (p - 1) / p for powers of two. Other p are split into blocks of powers of two: 44 into 32,
    8 and 4. Each block does its own halving; then, from the smallest on, it sends its sums to the
    next larger block. A server in a block of s sends b / s bytes, once it has received those of the
    smaller block.

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


def reduce_(size: float, p: int, link: NetworkLink) -> Cost:
    """Return the modelled time of a pipelined reduction to one participant: (p - 1) a + b / B.

    NCCL reduces so. A broadcast costs the same.
    """
    return Cost((p - 1) * link.latency, size / link.bandwidth) if p > 1 else Cost()


def host_reduce(size: float, p: int, link: NetworkLink) -> Cost:
    """Return the modelled time of reducing the buffers of p GPUs in host memory: a + p b / B.

    Each GPU copies its buffer there, over one bus that the p GPUs share. A broadcast costs the
    same.
    """
    return Cost(link.latency, p * size / link.bandwidth) if p > 1 else Cost()


def hierarchical(size: float, servers: int, gpus: int, cluster: GpuServers) -> Cost:
    """Return the modelled time of an all-reduce that first reduces within each server.

    It is the paper's: reduce within each server, all-reduce between servers, broadcast. The phase
    between servers is halving-doubling; with one server it is empty.
    """
    if size < cluster.nccl_from:
        inside = host_reduce(size, gpus, cluster.host)
    else:
        inside = reduce_(size, gpus, cluster.local)
    return inside + halving_doubling(size, servers, cluster.network) + inside


def flat(
    sum_over: Callable[[float, int, NetworkLink], Cost],
) -> Callable[[float, int, int, GpuServers], Cost]:
    """Return the model of an all-reduce by one ring through the GPUs of all servers.

    The slowest link bounds it. The ring enters and leaves each server once.
    """
    return lambda size, servers, gpus, cluster: sum_over(
        size, servers * gpus, cluster.network if servers > 1 else cluster.local
    )


def flat_halving_doubling(size: float, servers: int, gpus: int, cluster: GpuServers) -> Cost:
    """Return the modelled time of halving-doubling over all GPUs, within each server first.

    Then each of the g GPUs of a server has b / g bytes to sum with the corresponding GPUs of the
    other servers, which together are b bytes over the network of the server.
    """
    inside = halving_doubling(size, gpus, cluster.local)
    return inside + halving_doubling(size, servers, cluster.network)


ALGORITHMS = {
    "hierarchical": hierarchical,
    "halving-doubling": flat_halving_doubling,
    "ring": flat(ring),
    "gloo": flat(gloo_ring),
}
"""The all-reduce algorithms, by their name on the command line."""


def finish_time(ready: Sequence[float], costs: Sequence[Cost], *, concurrent: int = 1) -> float:
    """Return the time in seconds at which the last of several all-reduces finishes.

    All-reduce i is ready at `ready[i]`. All start in the given order, since every process must
    start them in the same order, and at most `concurrent` are in flight at once. The wire carries
    one at a time; only the latencies of several all-reduces overlap.
    """
    done: list[float] = []
    for i, (earliest, cost) in enumerate(zip(ready, costs, strict=True)):
        start = max(earliest, done[i - concurrent]) if i >= concurrent else earliest
        wire_is_free = done[-1] if done else 0.0
        done.append(max(start + cost.latency, wire_is_free) + cost.transfer)
    return done[-1]


def exposed_cost(
    ready: Sequence[float], costs: Sequence[Cost], backward: float, *, concurrent: int = 1
) -> Cost:
    """Return the time of all-reduces that a backward pass of `backward` seconds does not hide.

    `ready` are shares of that pass. Exposed latency is what would remain on a wire of infinite
    bandwidth; exposed transfer is the rest.
    """
    ready_at = [share * backward for share in ready]
    whole = finish_time(ready_at, costs, concurrent=concurrent) - backward
    unhindered = [Cost(cost.latency, 0.0) for cost in costs]
    latency = finish_time(ready_at, unhindered, concurrent=concurrent) - backward
    return Cost(max(0.0, latency), max(0.0, whole) - max(0.0, latency))
