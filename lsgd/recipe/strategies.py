"""How what the workers compute becomes updates of one model, and the cluster in virtual time.

A synchronous strategy computes the same however its sums are made, so all of its settings are
execution. Of local steps those settings count that say when and how the workers exchange. Every
other strategy depends on the order in which pushes reach the servers, and so on all that decides
it.
"""

from dataclasses import dataclass, field

from lsgd.recipe.fields import above_0, at_least, at_most, below, finite, later, one_of


@dataclass(frozen=True)
class StrategySettings:
    """Which gradients make an update, and where the parameters are."""

    name: str = field(
        default="allreduce",
        metadata=one_of("allreduce", "sync", "backup", "bounded", "async", "local", "hogwild"),
    )
    """allreduce and sync are the same synchronous SGD, by a sum over all processes or on parameter
    servers: an update by the mean over all kn examples of a step. backup does not wait for the last
    workers, bounded and async make an update of each push, which may be stale. local lets every
    worker update a copy of its own, and exchanges what they have learned now and then. hogwild is
    processes of one machine that update one model in shared memory without a lock (Niu et al.
    2011), for comparison: nothing records when, so two runs differ, and none can be replayed."""
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
    sparse_rows: bool = field(default=False, metadata=later(False))
    """Of sync: whether of the table of an embedding only the rows that a step uses travel, row i to
    and from server i mod `servers`. It takes plain SGD, by which the others stand still; virtual
    time goes on counting whole tables."""

    order: str = field(default="virtual", metadata=later("virtual"))
    """Of backup, bounded and async: what decides in which order the servers handle pushes. virtual:
    a cluster in virtual time, so that the run is the same on any processes. live: who comes first,
    each worker and each server being a process; the run folder's orders.npz has what came out.
    Another value is the path of such a file, whose run this is, bit by bit, on any processes."""

    local_steps: int = field(default=1, metadata=later(1) | at_least(1))
    """Of local: H, the updates that a worker makes of its copy between two exchanges. An epoch ends
    with one, after fewer updates if need be. Of bounded and async: the updates that a worker makes
    of its own between reading and pushing; a push is then the way that it has gone, backwards."""
    outer: str = field(
        default="mean", metadata=later("mean") | one_of("mean", "sgd", "nesterov", "elastic")
    )
    """Of local: the rule by which the model takes up what the copies have learned. mean is the mean
    of the copies, by the examples of each; sgd and nesterov are momentum SGD, whose gradient is the
    model less that mean; elastic draws model and copies to each other (Zhang et al. 2015). Of
    bounded and async: the rule by which the model takes up the way of a push; mean goes all of it.
    With mean and one local step a push is a gradient."""
    outer_lr: float = field(default=1.0, metadata=later(1.0) | above_0())
    """Of the outer rules sgd and nesterov: their lr, which has no schedule."""
    outer_momentum: float = field(
        default=0.0,
        metadata=later(0.0) | at_least(0) | below(1, "grows without end; write a number below 1"),
    )
    """Of the outer rules sgd and nesterov: their momentum."""
    moving_rate: float = field(default=0.0, metadata=later(0.0) | at_least(0))
    """Of the outer rule elastic: alpha, the share of the way to the model that a copy goes in an
    exchange, while the model goes the same share of the way to each copy."""

    @property
    def pushes(self) -> bool:
        """Whether workers push gradients in an order of their own, each of any next batch."""
        return self.name in ("backup", "bounded", "async")

    @property
    def asynchronous(self) -> bool:
        """Whether each worker computes its updates in its own time, of whatever batches it gets."""
        return self.pushes or self.name == "hogwild"

    @property
    def pushes_ways(self) -> bool:
        """Whether a push is the way that a worker has gone by updates of its own."""
        local = self.local_steps > 1 or self.outer != "mean"
        return self.name in ("bounded", "async") and local

    @property
    def push_steps(self) -> int:
        """The batches of n examples that a push is made of."""
        return self.local_steps if self.pushes_ways else 1

    @property
    def live(self) -> bool:
        """Whether real processes decide the order of pushes."""
        return self.order == "live"

    @property
    def synchronous(self) -> bool:
        """Whether updates are those of all-reduce, whenever and wherever they are made."""
        return self.name in ("allreduce", "sync")

    @property
    def server_processes(self) -> int:
        """The most processes of a job that host servers and no worker."""
        on_their_own = self.topology == "central" and (self.name == "sync" or self.live)
        return self.servers if on_their_own else 0

    def worker_processes(self, processes: int) -> int:
        """The number of processes, out of so many, that host workers; they come first.

        The first one does, though all servers may then have to share a process, or its own.
        """
        return processes - min(self.server_processes, processes - 1)

    def update_workers(self, workers: int) -> int:
        """The number of workers, out of so many, whose gradients make one update, or one step of
        local updates."""
        match self.name:
            case "allreduce" | "sync" | "local":
                return workers
            case "backup":
                return workers - self.backup
            case "bounded" | "async" | "hogwild":
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
