"""The settings of parallel-training strategies and of a cluster in virtual time.

A synchronous strategy computes the same result however its sums are made, so all of its settings
are execution. With local steps, the settings that decide when and how workers exchange parameters
are trajectory. Every other strategy depends on the order in which pushes reach the servers, and so
on all settings that decide this order.
"""

from dataclasses import dataclass

from lsgd.recipe.fields import (
    ADDED_LATER,
    above_0,
    at_least,
    at_most,
    below,
    one_of,
    only_for,
    setting,
)

PUSHED = only_for("strategy.name", "backup", "bounded", "async")
SERVED = only_for("strategy.name", "sync", "backup", "bounded", "async")
LOCAL = only_for("strategy.name", "local", "bounded", "async")
MOMENTUM = only_for("strategy.outer", "sgd", "nesterov")
"""Metadata of the settings of some strategies, or of some outer rules, only."""


@dataclass(frozen=True)
class StrategySettings:
    """The settings of a parallel-training strategy: how workers share gradients and parameters."""

    name: str = setting(
        "allreduce", one_of("allreduce", "sync", "backup", "bounded", "async", "local", "hogwild")
    )
    """The strategy: allreduce, sync, backup, bounded, async, local or hogwild.
    allreduce and sync are the same synchronous SGD, by an all-reduce or on parameter servers: an
    update by the mean over all kn examples of a step. backup does not wait for the slowest workers.
    bounded and async make an update of each push, which may be stale. With local every worker
    updates a copy of its own, and the copies are combined now and then. hogwild is processes of one
    machine that update one model in shared memory without a lock (Niu et al. 2011), for comparison:
    nothing records the order, so two runs differ, and none can be replayed."""
    backup: int = setting(0, only_for("strategy.name", "backup"), ADDED_LATER, at_least(0))
    """The number of workers beyond those that an update waits for."""
    slack: int = setting(0, only_for("strategy.name", "bounded"), ADDED_LATER, at_least(0))
    """The number of pushes a worker may be ahead of the slowest before it waits."""
    staleness_aware: bool = setting(
        False, only_for("strategy.name", "bounded", "async"), ADDED_LATER
    )
    """Whether the lr of a push is divided by its staleness.
    Staleness is the number of updates since the worker read the model (Zhang et al. 2016)."""
    servers: int = setting(1, SERVED, ADDED_LATER, at_least(1))
    """The number of parameter servers."""
    topology: str = setting("central", SERVED, ADDED_LATER, one_of("central", "colocated"))
    """The machines of the servers: central or colocated.
    central: servers have machines of their own. colocated: server i is on the machine of worker i
    and shares its network."""
    placement: str = setting("greedy", SERVED, ADDED_LATER, one_of("round_robin", "greedy", "hash"))
    """The assignment of parameters to servers, by the rules of lsgd.strategy.placement."""
    sparse_rows: bool = setting(False, only_for("strategy.name", "sync"), ADDED_LATER)
    """Whether only the embedding rows that a step uses are sent.
    Row i is stored on server i mod `servers`. It requires plain SGD, which does not change the
    other rows. Virtual time still counts whole tables."""

    order: str = setting("virtual", PUSHED, ADDED_LATER)
    """The source of the order in which servers handle pushes.
    virtual: a cluster in virtual time, so that the run is the same on any number of processes.
    live: the order of arrival, with a process for each worker and each server; it is recorded in
    the run folder's orders.npz. Any other value is the path of such a file, whose run is replayed
    bit by bit on any number of processes."""

    local_steps: int = setting(1, LOCAL, ADDED_LATER, at_least(1))
    """H, the number of updates that a worker makes of its copy between exchanges or pushes.
    Of local: an epoch ends with an exchange, after fewer updates if need be. Of bounded and async:
    the updates between reading and pushing; a push is then a pseudo-gradient, the parameters read
    minus those reached."""
    outer: str = setting("mean", LOCAL, ADDED_LATER, one_of("mean", "sgd", "nesterov", "elastic"))
    """The outer rule, by which the model is updated from the workers' copies.
    Of local: mean takes the mean of the copies, weighted by the examples of each; sgd and nesterov
    are momentum SGD whose gradient is the model minus that mean; elastic moves model and copies
    towards each other (Zhang et al. 2015). Of bounded and async: the rule that applies a pushed
    pseudo-gradient; mean subtracts all of it. With mean and one local step a push is a gradient."""
    outer_lr: float = setting(1.0, LOCAL, MOMENTUM, ADDED_LATER, above_0())
    """The constant lr of the outer rule."""
    outer_momentum: float = setting(
        0.0,
        LOCAL,
        MOMENTUM,
        ADDED_LATER,
        at_least(0),
        below(1, "grows without end; write a number below 1"),
    )
    """The momentum of the outer rule."""
    moving_rate: float = setting(
        0.0,
        only_for("strategy.name", "local"),
        only_for("strategy.outer", "elastic"),
        ADDED_LATER,
        at_least(0),
    )
    """Alpha, the share of its distance to the model that a copy moves.
    In the same exchange the model moves this share of the distance to each copy."""

    @property
    def is_push_based(self) -> bool:
        """Whether workers push to parameter servers in an order of events, not in common steps."""
        return self.name in ("backup", "bounded", "async")

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers compute gradients without a common step, each for any next batch."""
        return self.is_push_based or self.name == "hogwild"

    @property
    def pushes_deltas(self) -> bool:
        """Whether workers push pseudo-gradients of several local updates rather than gradients."""
        local = self.local_steps > 1 or self.outer != "mean"
        return self.name in ("bounded", "async") and local

    @property
    def batches_per_push(self) -> int:
        """The number of batches that a worker computes on for one push to the servers."""
        return self.local_steps if self.pushes_deltas else 1

    @property
    def has_live_order(self) -> bool:
        """Whether the timing of real processes, not virtual time, orders the workers' pushes."""
        return self.order == "live"

    @property
    def is_synchronous(self) -> bool:
        """Whether the strategy's updates equal those of a synchronous all-reduce."""
        return self.name in ("allreduce", "sync")

    @property
    def server_processes(self) -> int:
        """The largest number of processes that host parameter servers and no worker."""
        on_their_own = self.topology == "central" and (self.name == "sync" or self.has_live_order)
        return self.servers if on_their_own else 0

    def worker_processes(self, processes: int) -> int:
        """Return how many of `processes` processes host workers; their ranks come first.

        Process 0 always hosts a worker. All servers may then have to share one process, or use
        process 0.
        """
        return processes - min(self.server_processes, processes - 1)

    def update_workers(self, workers: int) -> int:
        """Return how many of `workers` workers give the gradients of one update of the model.

        With local updates it is the number of workers of one step.
        """
        match self.name:
            case "allreduce" | "sync" | "local":
                return workers
            case "backup":
                return workers - self.backup
            case "bounded" | "async" | "hogwild":
                return 1
        raise ValueError(self.name)


@dataclass(frozen=True)
class VirtualCluster:
    """The settings of a cluster in virtual time: durations of workers' steps and of messages.

    The seconds of a step are drawn for each (seed, worker, step): step e^(spread z) speeds[worker],
    with z from a standard normal distribution, and in a share of the steps slow_by more.
    """

    step: float = setting(0.1, ADDED_LATER, above_0())
    """The median seconds in which a worker computes a gradient of its n examples."""
    spread: float = setting(
        0.1,
        ADDED_LATER,
        at_least(0),
        at_most(10, "is too large for a spread of steps; write 10 or less"),
    )
    """The standard deviation of the logarithm of these seconds."""
    slow_share: float = setting(
        0.0,
        ADDED_LATER,
        at_least(0),
        at_most(1, "is more than all steps; write a number from 0 to 1"),
    )
    """The share of steps in which a worker is a straggler."""
    slow_by: float = setting(0.0, ADDED_LATER, at_least(0))
    """The additional seconds of a straggler's step."""
    speeds: list[float] = setting([], ADDED_LATER, above_0())
    """The relative step time of each worker, 2 for twice as slow; [] is 1 for all."""
    server_gbits: float = setting(10.0, ADDED_LATER, above_0())
    """The bandwidth of a server's network, in Gbit/s."""
    worker_gbits: float = setting(10.0, ADDED_LATER, above_0())
    """The bandwidth of a worker's network in Gbit/s, shared with a colocated server."""
    duplex: bool = setting(True, ADDED_LATER)
    """Whether a machine sends and receives at full bandwidth at the same time."""
    latency_us: float = setting(100.0, ADDED_LATER, at_least(0))
    """The latency of a message in microseconds, without the time for its bytes."""
    overhead_us: float = setting(0.0, ADDED_LATER, at_least(0))
    """The microseconds for which a message occupies a server's network in addition to its bytes."""
    seed: int = setting(0, ADDED_LATER, at_least(0, 2**24 - 1))
    """The seed of the step times; another one gives another order of events."""

    def speed(self, worker: int) -> float:
        """Return the relative step time of a worker, such as 2 for one that is twice as slow."""
        return self.speeds[worker] if self.speeds else 1.0
