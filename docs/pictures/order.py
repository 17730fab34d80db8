"""Drawing of an epoch of asynchronous training in virtual time: `python -m docs.pictures.order`."""

from dataclasses import dataclass

import numpy as np
import torch

from docs.pictures.svg import WIDTH, Drawing, write
from lsgd.api import Recipe, load_recipe
from lsgd.strategy.clock import step_seconds
from lsgd.strategy.order import ScriptedPush
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import VirtualEpoch, server_loads, virtual_epoch
from lsgd.workloads import open_workload

NAME = "order"
OVERRIDES = (
    "+recipe=digits",
    "strategy=async",
    "workers=3",
    "worker_batch=120",
    "cluster.spread=0.4",
    "cluster.latency_us=15000",
    "cluster.seed=59",
)
"""The overrides of a run of 3 workers with very uneven steps and 12 pushes in an epoch."""
LEFT, RIGHT = 105.0, WIDTH - 25.0
"""The left and right edge of the time axis."""
STALENESS, SERVER, FIRST, APART, BAR = 68.0, 106.0, 186.0, 64.0, 34.0
"""The y coordinates of the drawing's rows.

Those of the staleness, the server and the first worker; then the distance between workers and the
height of a bar.
"""


@dataclass(frozen=True)
class TimedPush:
    """A push with its times in virtual seconds."""

    push: ScriptedPush
    begins: float
    """The time at which the worker has read the parameters and starts to compute."""
    ends: float
    arrives: float

    @property
    def staleness(self) -> int:
        """The updates by other workers between this worker's read and its push."""
        return self.push.applied[0] - self.push.read[0]


def epoch_of(recipe: Recipe) -> VirtualEpoch:
    """Return the first virtual epoch of the recipe, with the sizes of its network's parameters."""
    parameters = list(open_workload(recipe, torch.device("cpu")).network().parameters())
    slices = place([each.numel() for each in parameters], 1, recipe.strategy.placement)
    return virtual_epoch(recipe, server_loads(slices, parameters[0].element_size()), 0)


def timed_pushes(recipe: Recipe, epoch: VirtualEpoch) -> list[TimedPush]:
    """Return the pushes of an epoch in the order in which the server handles them."""
    pushes, timeline = epoch.script.pushes, epoch.timeline
    seconds = step_seconds(
        recipe.cluster, workers=recipe.workers, seed=recipe.seed, epoch=0, steps=range(len(pushes))
    )
    made = [0] * recipe.workers
    drawn = []
    for push, arrives, wait in zip(pushes, timeline.updates, timeline.waits, strict=True):
        ends = arrives - wait
        begins = ends - float(seconds[push.worker, made[push.worker]])
        made[push.worker] += 1
        drawn.append(TimedPush(push, begins, ends, arrives))
    return drawn


def draw() -> str:
    """Return the drawing as SVG: computations as bars, reads and pushes as arrows."""
    recipe = load_recipe(*OVERRIDES)
    epoch = epoch_of(recipe)
    pushes = timed_pushes(recipe, epoch)
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
