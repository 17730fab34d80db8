"""An epoch of a recipe in virtual time: which pushes there are, what they read, and when.

Every epoch begins anew, with all workers reading, so it is a function of recipe, seed and epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from lsgd.recipe import Recipe, StrategySettings
from lsgd.strategy.clock import Timeline, simulate
from lsgd.strategy.gate import Barrier, Bounded, Gate, Tickets
from lsgd.strategy.order import Script, play
from lsgd.strategy.placement import Slice, elements


@dataclass(frozen=True)
class VirtualEpoch:
    """What happens in an epoch, and when."""

    script: Script
    timeline: Timeline


class VirtualTime:
    """The time of a whole run on the recipe's cluster, for servers whose parameters have so many
    bytes."""

    def __init__(self, recipe: Recipe, loads: Sequence[float]) -> None:
        self.recipe = recipe
        # Only the epoch that is trained is kept, and the next, which loaders look into.
        self.epoch = lru_cache(2)(partial(virtual_epoch, recipe, loads))
        self.begins = {0: 0.0}
        """When epochs begin, in seconds since the run began, as far as it was asked for."""

    def row(self, step: int) -> dict[str, float | list[int]]:
        """What a row of metrics after this step of the run says of the pushes of this epoch since
        the row before: their staleness, how many were dropped, how long they waited at server 0;
        the bytes that the fullest server gets and gives per update, and the seconds since the run
        began.
        """
        epoch, last = divmod(step, self.recipe.steps_per_epoch)
        script, timeline = self.epoch(epoch).script, self.epoch(epoch).timeline
        steps = row_steps(last, self.recipe.log_steps)
        numbers = [number for each in steps for number in script.steps[each]]
        at_server_0 = [number for update in script.updates[0] for number in update]
        wait = dict(zip(at_server_0, timeline.waits, strict=True))
        return staleness_row(script, last, self.recipe.log_steps) | {
            "queue_wait": sum(wait[number] for number in numbers) / len(numbers),
            "server_bytes": max(timeline.sent) / len(timeline.updates),
            "virtual_seconds": self.begin(epoch)
            + timeline.updates[max(script.pushes[number].applied[0] for number in numbers)],
        }

    def script(self, epoch: int) -> Script:
        """What the pushes of an epoch read and where they go."""
        return self.epoch(epoch).script

    def begin(self, epoch: int) -> float:
        """When this epoch begins, in seconds since the run began."""
        known = max(each for each in self.begins if each <= epoch)
        for each in range(known, epoch):
            self.begins[each + 1] = self.begins[each] + self.epoch(each).timeline.seconds
        return self.begins[epoch]


def virtual_epoch(recipe: Recipe, loads: Sequence[float], epoch: int) -> VirtualEpoch:
    """The epoch on the recipe's cluster, for servers whose parameters have so many bytes."""
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
        steps=recipe.ticket_steps,
    )
    script = play(
        [timeline.order],
        lambda left: make_gates(recipe.strategy, workers, left),
        Tickets(tickets),
        workers,
    )
    return VirtualEpoch(script, timeline)


def row_steps(last: int, log_steps: int) -> range:
    """The steps of an epoch that a row after this one is about."""
    return range(max(0, last + 1 - log_steps), last + 1)


def staleness_row(script: Script, last: int, log_steps: int) -> dict[str, float | list[int]]:
    """The staleness of the pushes in these steps, and how many others were dropped."""
    steps = row_steps(last, log_steps)
    pushes = [script.pushes[number] for each in steps for number in script.steps[each]]
    staleness = [push.applied[0] - push.read[0] for push in pushes if push.applied[0] >= 0]
    return {
        "staleness": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
        "staleness_counts": [staleness.count(each) for each in range(max(staleness) + 1)],
        "dropped": sum(script.dropped[steps.start : steps.stop]),
    }


def make_gates(strategy: StrategySettings, workers: int, tickets: int) -> list[Gate]:
    """The gates of an epoch: one of each server, or the one of server 0 where the others follow."""
    match strategy.name:
        case "sync" | "backup":
            return [Barrier(workers, pushes=strategy.update_workers(workers), tickets=tickets)]
        case "bounded":
            return [Bounded(workers, slack=strategy.slack) for _ in range(strategy.servers)]
        case "async":
            return [Bounded(workers) for _ in range(strategy.servers)]
    raise ValueError(strategy.name)


def server_loads(slices: Sequence[Sequence[Slice]], itemsize: int) -> list[float]:
    """The bytes of each server's parameters."""
    return [float(elements(each) * itemsize) for each in slices]
