"""Epochs of a recipe in virtual time: the pushes, the versions that they read, and their times.

All workers read the parameters at the start of every epoch, so an epoch is a function of recipe,
seed and epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from lsgd.recipe import Recipe, StrategySettings
from lsgd.strategy.clock import Timeline, simulate
from lsgd.strategy.gate import AdmissionGate, BarrierGate, BoundedStalenessGate, Tickets
from lsgd.strategy.order import EpochScript, PushOrder, play_orders
from lsgd.strategy.placement import Slice, elements


@dataclass(frozen=True)
class VirtualEpoch:
    """Simulated epoch: the script of its pushes, and its timeline in virtual seconds."""

    script: EpochScript
    timeline: Timeline


class VirtualTime:
    """Simulated timing of a run's epochs on its cluster; `loads` has the bytes of each server."""

    def __init__(self, recipe: Recipe, loads: Sequence[float]) -> None:
        self.recipe = recipe
        # Two epochs are cached: the current one, and the next, from which loaders prefetch.
        self.epoch = lru_cache(2)(partial(virtual_epoch, recipe, loads))
        self.begins = {0: 0.0}
        """Start of each epoch computed so far, in seconds since the start of the run."""

    def row(self, step: int) -> dict[str, float | list[int]]:
        """Return the staleness, wait and virtual-time metrics for the metrics row after this step.

        They cover the pushes of this epoch since the row before: their staleness, the number
        dropped, and their wait at server 0. Further columns are the bytes that the busiest server
        receives and sends per update, and the seconds since the start of the run.
        """
        epoch, last = divmod(step, self.recipe.steps_per_epoch)
        script, timeline = self.epoch(epoch).script, self.epoch(epoch).timeline
        steps = row_steps(last, self.recipe.log_steps)
        numbers = [number for each in steps for number in script.steps[each]]
        at_server_0 = [number for update in script.updates[0] for number in update]
        wait = dict(zip(at_server_0, timeline.waits, strict=True))
        return staleness_metrics(script, last, self.recipe.log_steps) | {
            "queue_wait": sum(wait[number] for number in numbers) / len(numbers),
            "server_bytes": max(timeline.sent) / len(timeline.updates),
            "virtual_seconds": self.epoch_start(epoch)
            + timeline.updates[max(script.pushes[number].applied[0] for number in numbers)],
        }

    def script(self, epoch: int) -> EpochScript:
        """Return the script of an epoch: which parameter versions each push reads and updates."""
        return self.epoch(epoch).script

    def epoch_start(self, epoch: int) -> float:
        """Return the virtual start time of this epoch, in seconds since the start of the run."""
        known = max(each for each in self.begins if each <= epoch)
        for each in range(known, epoch):
            self.begins[each + 1] = self.begins[each] + self.epoch(each).timeline.seconds
        return self.begins[epoch]


def virtual_epoch(recipe: Recipe, loads: Sequence[float], epoch: int) -> VirtualEpoch:
    """Simulate an epoch on a recipe's cluster, with these bytes of parameters on each server."""
    workers, tickets = recipe.workers, recipe.tickets
    timeline = simulate(
        recipe.cluster,
        make_gates(recipe.strategy, workers, tickets),
        Tickets(tickets),
        loads,
        workers=workers,
        colocated=recipe.strategy.topology == "colocated",
        seed=recipe.seed,
        epoch=epoch,
        steps=recipe.gradients_per_ticket,
    )
    return VirtualEpoch(play_epoch(recipe, [timeline.order], Tickets(tickets)), timeline)


def play_epoch(
    recipe: Recipe,
    orders: Sequence[PushOrder],
    tickets: Tickets,
    aheads: Sequence[int] | None = None,
) -> EpochScript:
    """Replay an epoch's orders of pushes through a recipe's gates, as `play_orders` does."""
    gates = partial(make_gates, recipe.strategy, recipe.workers)
    return play_orders(orders, gates, tickets, recipe.workers, aheads)


def row_steps(last: int, log_steps: int) -> range:
    """Return the steps of an epoch that the metrics row after its step `last` covers."""
    return range(max(0, last + 1 - log_steps), last + 1)


def staleness_metrics(
    script: EpochScript, last: int, log_steps: int
) -> dict[str, float | list[int]]:
    """Return the metrics on staleness and dropped pushes since the last metrics row."""
    steps = row_steps(last, log_steps)
    pushes = [script.pushes[number] for each in steps for number in script.steps[each]]
    staleness = [push.applied[0] - push.read[0] for push in pushes if push.applied[0] >= 0]
    return {
        "staleness": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
        "staleness_counts": [staleness.count(each) for each in range(max(staleness) + 1)],
        "dropped": sum(script.dropped[steps.start : steps.stop]),
    }


def make_gates(strategy: StrategySettings, workers: int, tickets: int) -> list[AdmissionGate]:
    """Return the admission gates of an epoch: one per server, or one that all servers follow."""
    match strategy.name:
        case "sync" | "backup":
            return [BarrierGate(workers, pushes=strategy.update_workers(workers), tickets=tickets)]
        case "bounded":
            return [
                BoundedStalenessGate(workers, slack=strategy.slack) for _ in range(strategy.servers)
            ]
        case "async":
            return [BoundedStalenessGate(workers) for _ in range(strategy.servers)]
    raise ValueError(strategy.name)


def server_loads(slices: Sequence[Sequence[Slice]], itemsize: int) -> list[float]:
    """Return the bytes of parameters on each server, given its slices."""
    return [float(elements(each) * itemsize) for each in slices]
