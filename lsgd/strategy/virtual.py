"""An epoch of a recipe in virtual time: which pushes there are, what they read, and when.

Every epoch begins anew, with all workers reading, so it is a function of recipe, seed and epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.recipe import Recipe
from lsgd.strategy.clock import Timeline, simulate
from lsgd.strategy.gate import Barrier, Bounded, Gate, Tickets
from lsgd.strategy.order import Script, play
from lsgd.strategy.placement import Slice, elements, place


@dataclass(frozen=True)
class VirtualEpoch:
    """What happens in an epoch, and when."""

    script: Script
    timeline: Timeline


def virtual_epoch(recipe: Recipe, loads: Sequence[float], epoch: int) -> VirtualEpoch:
    """The epoch on the recipe's cluster, for servers whose parameters have so many bytes."""
    workers = recipe.workers
    timeline = simulate(
        recipe.cluster,
        make_gates(recipe),
        Tickets(recipe.tickets),
        loads,
        workers=workers,
        colocated=recipe.strategy.topology == "colocated",
        seed=recipe.seed,
        epoch=epoch,
    )
    script = play(timeline.order, make_gates(recipe), Tickets(recipe.tickets), workers)
    return VirtualEpoch(script, timeline)


def make_gates(recipe: Recipe) -> list[Gate]:
    """The gates of an epoch: one of each server, or the one of server 0 where the others follow."""
    strategy, workers = recipe.strategy, recipe.workers
    match strategy.name:
        case "sync" | "backup":
            return [Barrier(workers, pushes=recipe.update_workers, tickets=recipe.tickets)]
        case "bounded":
            return [Bounded(workers, slack=strategy.slack) for _ in range(strategy.servers)]
        case "async":
            return [Bounded(workers) for _ in range(strategy.servers)]
    raise ValueError(strategy.name)


def place_parameters(recipe: Recipe, sizes: Sequence[int]) -> list[list[Slice]]:
    """The slices of the recipe's servers, for parameters of these numbers of elements."""
    return place(sizes, recipe.strategy.servers, recipe.strategy.placement)


def server_loads(slices: Sequence[Sequence[Slice]], itemsize: int) -> list[float]:
    """The bytes of each server's parameters."""
    return [float(elements(each) * itemsize) for each in slices]
