"""Draws an epoch of an asynchronous run in virtual time: `python -m docs.pictures.order`."""

from dataclasses import dataclass

import numpy as np
import torch

from docs.pictures.svg import WIDTH, Drawing, write
from lsgd.api import Recipe, load_recipe
from lsgd.strategy.clock import step_seconds
from lsgd.strategy.order import Push
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import VirtualEpoch, server_loads, virtual_epoch
from lsgd.workloads import open_workload

NAME = "order"
WORDS = (
    "+recipe=digits",
    "strategy=async",
    "workers=3",
    "worker_batch=120",
    "cluster.spread=0.4",
    "cluster.latency_us=15000",
    "cluster.seed=59",
)
"""A run of 3 workers with very uneven steps, of which an epoch has 12 pushes."""
LEFT, RIGHT = 105.0, WIDTH - 25.0
"""Where the first second begins and the last one ends."""
STALENESS, SERVER, FIRST, APART, BAR = 68.0, 106.0, 186.0, 64.0, 34.0
"""The heights at which the staleness of pushes, the server and the first worker are, the way to the
next one, and the height of a bar."""


@dataclass(frozen=True)
class Computed:
    """A push, with its times in virtual seconds."""

    push: Push
    begins: float
    """When its worker has read the parameters, and begins to compute."""
    ends: float
    arrives: float

    @property
    def staleness(self) -> int:
        """The updates of others since the worker has read."""
        return self.push.applied[0] - self.push.read[0]


def epoch_of(recipe: Recipe) -> VirtualEpoch:
    """The first epoch, for the parameters that the recipe's network has."""
    parameters = list(open_workload(recipe, torch.device("cpu")).network().parameters())
    slices = place([each.numel() for each in parameters], 1, recipe.strategy.placement)
    return virtual_epoch(recipe, server_loads(slices, parameters[0].element_size()), 0)


def computed(recipe: Recipe, epoch: VirtualEpoch) -> list[Computed]:
    """The pushes of an epoch in the order in which the server handles them."""
    pushes, timeline = epoch.script.pushes, epoch.timeline
    seconds = step_seconds(
        recipe.cluster,
        workers=recipe.workers,
        seed=recipe.seed,
        epoch=0,
        steps=range(len(pushes)),
    )
    made = [0] * recipe.workers
    drawn = []
    for push, arrives, wait in zip(pushes, timeline.updates, timeline.waits, strict=True):
        ends = arrives - wait
        begins = ends - float(seconds[push.worker, made[push.worker]])
        made[push.worker] += 1
        drawn.append(Computed(push, begins, ends, arrives))
    return drawn


def draw() -> str:
    """Workers and server as lines, computations as bars, reads and pushes as arrows."""
    recipe = load_recipe(*WORDS)
    epoch = epoch_of(recipe)
    pushes = computed(recipe, epoch)
    staleness = [each.staleness for each in pushes]
    drawing = Drawing(
        NAME,
        "The order of an asynchronous run",
        f"{recipe.workers} workers read the parameters of a server, each computes a gradient in "
        "its own time and pushes it, and each push makes an update. The server gets the pushes of "
        f"the workers {', '.join(str(each.push.worker) for each in pushes)} in this order. Their "
        "staleness, the number of updates since the worker has read, is "
        f"{', '.join(map(str, staleness))}: {np.mean(staleness):g} on average.",
    )
    scale = (RIGHT - LEFT) / pushes[-1].arrives

    def x(seconds: float) -> float:
        return LEFT + scale * seconds

    def y(worker: int) -> float:
        return FIRST + APART * worker

    drawing.text(
        WIDTH / 2, 24, f"{recipe.workers} workers, 1 server, an update by each push", "head"
    )
    drawing.text(10, STALENESS, "staleness", "small", "start")
    drawing.text(10, SERVER, "server", "small", "start")
    drawing.line((LEFT, SERVER), (RIGHT, SERVER))
    for worker in range(recipe.workers):
        drawing.text(10, y(worker), f"worker {worker}", "small", "start")
        drawing.line((LEFT, y(worker)), (RIGHT, y(worker)))
    released = [0.0, *epoch.timeline.updates]
    for each in pushes:
        top = y(each.push.worker) - BAR / 2
        drawing.line((x(released[each.push.read[0]]), SERVER), (x(each.begins), top), "dashed")
        drawing.line((x(each.ends), top), (x(each.arrives), SERVER + 5), "arrow")
    for each in pushes:
        left, right, middle = x(each.begins), x(each.ends), y(each.push.worker)
        kind = "amber" if each.staleness else "green"
        drawing.box(left, middle - BAR / 2, right - left, BAR, kind)
        drawing.text((left + right) / 2, middle, f"{each.push.read[0]}", "small")
        drawing.disc(x(each.arrives), SERVER, 5, kind)
        drawing.text(x(each.arrives), STALENESS, f"{each.staleness}")
    bottom = y(recipe.workers - 1) + BAR / 2 + 28
    drawing.text(10, bottom, "seconds", "small", "start")
    for tenth in range(int(pushes[-1].arrives * 10) + 1):
        drawing.text(x(tenth / 10), bottom, f"{tenth / 10:g}", "small")
    drawing.text(10, bottom + 36, "dashed: reads; solid: pushes", "small", "start")
    drawing.text(
        10, bottom + 62, "in a bar: how many updates its worker has read", "small", "start"
    )
    return drawing.svg(bottom + 84)


if __name__ == "__main__":
    write(NAME, draw())
