"""How what the workers compute becomes updates of one model, and the cluster in virtual time.

A synchronous strategy computes the same however its sums are made, so all of its settings are
execution. Every other one depends on the order in which pushes reach the servers, and so on all
that decides it.
"""

from dataclasses import dataclass, field

from lsgd.recipe.fields import above_0, at_least, at_most, finite, later, one_of


@dataclass(frozen=True)
class StrategySettings:
    """Which gradients make an update, and where the parameters are."""

    name: str = field(
        default="allreduce",
        metadata=one_of("allreduce", "sync", "backup", "bounded", "async"),
    )
    """allreduce and sync are the same synchronous SGD, by a sum over all processes or on parameter
    servers: an update by the mean over all kn examples of a step. backup does not wait for the last
    workers, bounded and async make an update of each push, which may be stale."""
    backup: int = field(default=0, metadata=later(0) | at_least(0))
    """Of backup: how many workers there are beyond those that an update waits for."""
    slack: int = field(default=0, metadata=later(0) | at_least(0))
    """Of bounded: how many pushes a worker may be ahead of the slowest before it waits."""
    staleness_aware: bool = field(default=False, metadata=later(False))
    """Of bounded and async: whether the lr of a push is divided by its staleness, the number of
    updates since the worker has read (Zhang et al. 2016)."""
    servers: int = field(default=1, metadata=later(1) | at_least(1))
    """The number of parameter servers."""
    topology: str = field(
        default="central", metadata=later("central") | one_of("central", "colocated")
    )
    """central: servers have machines of their own. colocated: server i is on the machine of worker
    i and shares its network."""
    placement: str = field(
        default="greedy", metadata=later("greedy") | one_of("round_robin", "greedy", "hash")
    )
    """Which server has which parameters, by the rules of lsgd.strategy.placement."""

    @property
    def synchronous(self) -> bool:
        """Whether updates are those of all-reduce, whenever and wherever they are made."""
        return self.name in ("allreduce", "sync")

    @property
    def server_processes(self) -> int:
        """The most processes of a job that host servers and no worker."""
        return self.servers if self.name == "sync" and self.topology == "central" else 0

    def worker_processes(self, processes: int) -> int:
        """The number of processes, out of so many, that host workers; they come first.

        The first one does, though all servers may then have to share a process, or its own.
        """
        return processes - min(self.server_processes, processes - 1)

    def update_workers(self, workers: int) -> int:
        """The number of workers, out of so many, whose gradients make one update."""
        match self.name:
            case "allreduce" | "sync":
                return workers
            case "backup":
                return workers - self.backup
            case "bounded" | "async":
                return 1
        raise ValueError(self.name)


@dataclass(frozen=True)
class Cluster:
    """A cluster in virtual time: how long workers compute, and messages take.

    The seconds of a step are drawn for each (seed, worker, step): step e^(spread z) speeds[worker],
    with z from a standard normal distribution, and in a share of the steps slow_by more.
    """

    step: float = field(default=0.1, metadata=later(0.1) | above_0())
    """The median of the seconds in which a worker computes a gradient of its n examples."""
    spread: float = field(
        default=0.1,
        metadata=later(0.1) | at_least(0) | at_most(10, "is no spread of steps; write 10 or less"),
    )
    """The standard deviation of the logarithm of these seconds."""
    slow_share: float = field(
        default=0.0,
        metadata=later(0.0)
        | at_least(0)
        | at_most(1, "is more than all steps; write a number from 0 to 1"),
    )
    """The share of steps in which a worker is held up."""
    slow_by: float = field(default=0.0, metadata=later(0.0) | at_least(0))
    """The seconds by which such a step takes longer."""
    speeds: list[float] = field(default_factory=list, metadata=later([]) | finite())
    """How many times as long each worker takes for all of its steps; [] is 1 for all."""
    server_gbits: float = field(default=10.0, metadata=later(10.0) | above_0())
    """The bandwidth of a server's network, in Gbit/s."""
    worker_gbits: float = field(default=10.0, metadata=later(10.0) | above_0())
    """The bandwidth of a worker's network, in Gbit/s; where servers are colocated it is theirs."""
    duplex: bool = field(default=True, metadata=later(True))
    """Whether a machine sends and receives at full bandwidth at the same time."""
    latency_us: float = field(default=100.0, metadata=later(100.0) | at_least(0))
    """The microseconds that every message is on the way, beside those of its bytes."""
    overhead_us: float = field(default=0.0, metadata=later(0.0) | at_least(0))
    """The microseconds for which a server's network is busy with a message beside its bytes."""
    seed: int = field(default=0, metadata=later(0) | at_least(0, 2**24 - 1))
    """Another seed is the same run with other times, and so another order."""

    def speed(self, worker: int) -> float:
        """How many times as long this worker takes for its steps."""
        return self.speeds[worker] if self.speeds else 1.0
