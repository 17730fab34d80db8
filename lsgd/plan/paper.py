"""What Goyal et al. 2017 report of their cluster, and what the model makes of it.

Two numbers of the paper set two constants; others are then predicted, and the errors are told.
"""

from dataclasses import dataclass, replace
from functools import cache

from lsgd import config
from lsgd.plan import calibrate
from lsgd.plan.gradients import Piece, pieces
from lsgd.plan.hardware import GOYAL, PAPER, Hardware
from lsgd.plan.step import Machine, Measured
from lsgd.recipe import Recipe

HOURS_ON_8 = 29.0
"""90 epochs, kn = 256."""
GROWTH = 1.12
"""Of the time per step, from 8 to 352 GPUs (figure 7)."""
RING_RATIO = 3.0
"""Halving and doubling is so many times as fast as the ring on 32 servers (section 4)."""
MINUTES_ON_256 = 60.0
"""90 epochs, kn = 8192: "1 hour"."""
EPOCH_MINUTES_ON_8 = 16.0
"""Figure 7: "over 16 minutes"."""
BACKWARD = 0.120
"""Seconds, 32 images on a P100 (section 4.3)."""

LATENCY_SOURCE = (
    f"calibrated: the ring takes {RING_RATIO:g} times as long as halving-doubling on 32 servers "
    f"({GOYAL}, section 4)"
)
SPREAD_SOURCE = (
    f"calibrated: {GROWTH - 1:.0%} from 8 to 352 P100, over which a step grows by so much "
    f"({GOYAL}, figure 7)"
)


@dataclass(frozen=True)
class Prediction:
    """What the model says with some of the two constants calibrated."""

    name: str
    latency: float
    """Of a message between servers, seconds."""
    spread: float
    ring_ratio: float
    growth: float
    step: float
    """Seconds, on 256 GPUs."""
    minutes: float
    """90 epochs on 256 GPUs."""
    efficiency: float
    """On 256 GPUs, as a share of 8."""


def fits(recipe: Recipe) -> bool:
    """Whether the paper's step is one of this recipe's model: ResNet-50 at 224 in float32."""
    known = (recipe.model.name, recipe.data.image_size, recipe.precision)
    return known == ("resnet50", 224, "float32")


def measured(hours: float = HOURS_ON_8) -> Measured:
    """The paper's step on one server of 8, from the hours that 90 epochs take there."""
    recipe = _recipe("bs256")
    seconds = hours * 3600 / recipe.total_steps
    return Measured(
        seconds,
        images=recipe.worker_batch,
        gpus=8,
        backward_share=BACKWARD / seconds,
        data_wait=0.0,
        source=f"{GOYAL}: {hours:g} h for {recipe.epochs} epochs with kn = 256, over "
        f"{recipe.total_steps} steps; with it all that a server needs, its own sums, its loading "
        "and perhaps its evaluations",
        backward_source=f"{GOYAL}, section 4.3: {1000 * BACKWARD:g} ms",
    )


@cache
def tensors() -> tuple[Piece, ...]:
    """The 161 of ResNet-50, one by one."""
    return tuple(pieces(_recipe("bs256"), fused=False))


def calibrated_latency() -> float:
    """Of a message between the paper's servers, in seconds."""
    sizes = [piece.size for piece in tensors()]
    bandwidth = PAPER.cluster.network.bandwidth
    return calibrate.latency(sizes, bandwidth, servers=32, ratio=RING_RATIO)


@cache
def machine(*, latency: bool, spread: bool, hours: float = HOURS_ON_8) -> Machine:
    """The paper's servers with the latency, the spread, both or neither calibrated."""
    found = Machine(PAPER, 8, tensors(), measured(hours))
    if latency:
        micros = calibrated_latency() * 1e6
        found = _with(found, "network_latency", micros, LATENCY_SOURCE)
    if spread:
        share = calibrate.spread(found, _recipe("bs256"), 8, 352, GROWTH)
        found = _with(found, "spread", share, SPREAD_SOURCE)
    return found


def describes(planned: Machine, recipe: Recipe) -> bool:
    """Whether a plan is of the paper's own machine and 90 epochs, as `predictions` are."""
    own = _recipe("bs8k")
    there = replace(recipe, workers=own.workers)
    return planned == machine(latency=True, spread=True) and (
        (there.batch_size, there.total_steps) == (own.batch_size, own.total_steps)
    )


def hardware() -> Hardware:
    """The paper's, with both constants calibrated."""
    return machine(latency=True, spread=True).hardware


def predictions() -> list[Prediction]:
    """With both constants calibrated, with each, with neither, and from another reported number."""
    names = {
        (True, True): "both",
        (True, False): "latency only",
        (False, True): "spread only",
        (False, False): "neither",
    }
    found = [
        predict(name, machine(latency=latency, spread=spread))
        for (latency, spread), name in names.items()
    ]
    epochs = _recipe("bs256").epochs
    hours = EPOCH_MINUTES_ON_8 * epochs / 60
    other = machine(latency=True, spread=True, hours=hours)
    name = f"both, from {EPOCH_MINUTES_ON_8:g} min per epoch on 8 GPUs (figure 7)"
    return [*found, predict(name, other)]


def steps_on_256() -> int:
    """Of bs8k, all epochs."""
    return _recipe("bs8k").total_steps


def predict(name: str, machine: Machine) -> Prediction:
    """What this machine makes of bs8k on 256 GPUs."""
    recipe = _recipe("bs8k")
    step = machine.step(recipe, 256)
    network = machine.hardware.cluster.network
    return Prediction(
        name,
        latency=network.latency,
        spread=machine.hardware.spread.value,
        ring_ratio=calibrate.ring_ratio([piece.size for piece in machine.pieces], 32, network),
        growth=calibrate.growth(machine, recipe, 8, 352),
        step=step.seconds,
        minutes=steps_on_256() * step.seconds / 60,
        efficiency=machine.efficiency(step),
    )


def _with(machine: Machine, name: str, value: float, source: str) -> Machine:
    return replace(machine, hardware=machine.hardware.with_value(name, value, source))


@cache
def _recipe(name: str) -> Recipe:
    return config.load_recipe([f"+recipe={name}"])
