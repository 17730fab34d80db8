"""Fits two constants of the paper's cluster to what it reports, and predicts its hour with them.

    python results/2026-11-22-plan-calibration/calibrate.py

prints the table of the README beside it and draws figure.png and figure.svg there. The latency of a
message follows from the paper's ring taking three times as long as halving and doubling on 32
servers, the spread of the GPUs' times from the growth of a step from 8 to 352 GPUs (figure 7).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lsgd.config import load_recipe
from lsgd.plan import paper
from lsgd.plan.allreduce import NetworkLink, halving_doubling, ring
from lsgd.plan.gradients import GradientBucket, gradient_buckets
from lsgd.plan.hardware import PAPER, Hardware
from lsgd.plan.network import bisect
from lsgd.plan.step import MeasuredStep, ModelledCluster
from lsgd.recipe import Recipe
from lsgd.tables import markdown_table

GROWTH = 1.12
"""How many times as long a step takes on 352 GPUs as on 8 (figure 7)."""
RING_RATIO = 3.0
"""How many times as long as halving and doubling a ring takes on 32 servers (section 4)."""
MINUTES_ON_256 = 60.0
"""Minutes of 90 epochs with kn = 8192: "1 hour"."""
EPOCH_MINUTES_ON_8 = 16.0
"""Minutes of an epoch with kn = 256 by figure 7: "over 16 minutes"."""
UNCALIBRATED = PAPER.with_value("network_latency", 5, "assumed").with_value("spread", 0, "assumed")
"""A message of Gloo's over RDMA is assumed to take 5 µs, and all GPUs equally long."""


@dataclass(frozen=True)
class Prediction:
    """What the model says with some of the two constants calibrated."""

    name: str
    latency: float
    """Seconds of a message between servers."""
    spread: float
    """Standard deviation of a GPU's time per step, as a share of it."""
    ring_ratio: float
    """How many times as long as halving and doubling a ring takes on 32 servers."""
    growth: float
    """How many times as long a step takes on 352 GPUs as on 8."""
    step: float
    """Seconds of a step on 256 GPUs."""
    minutes: float
    """Minutes of 90 epochs on 256 GPUs."""
    efficiency: float
    """Images per second and GPU on 256 GPUs, as a share of those on 8."""


@cache
def recipe(name: str) -> Recipe:
    """A shipped recipe."""
    return load_recipe([f"+recipe={name}"])


@cache
def tensors() -> tuple[GradientBucket, ...]:
    """The 161 tensors of ResNet-50, which the paper sums one by one."""
    return tuple(gradient_buckets(recipe("bs256"), fused=False))


def ring_ratio(sizes: Sequence[float], link: NetworkLink) -> float:
    """How many times as long as halving and doubling a ring takes between 32 servers.

    For sums of these bytes, one after the other, without a backward pass beside them.
    """
    by_ring = sum(ring(size, 32, link).seconds for size in sizes)
    return by_ring / sum(halving_doubling(size, 32, link).seconds for size in sizes)


def latency() -> float:
    """Seconds of a message at which the ring takes RING_RATIO times as long."""
    sizes = [piece.size for piece in tensors()]
    bandwidth = PAPER.cluster.network.bandwidth
    return bisect(
        lambda alpha: ring_ratio(sizes, NetworkLink(alpha, bandwidth)), RING_RATIO, high=1.0
    )


def growth(machine: ModelledCluster) -> float:
    """How many times as long a step takes on 352 GPUs as on 8, with one worker on each."""
    on_few, on_many = (
        machine.step(replace(recipe("bs256"), workers=gpus), gpus).seconds for gpus in (8, 352)
    )
    return on_many / on_few


def spread(machine: ModelledCluster) -> float:
    """The spread of the GPUs' times at which a step grows GROWTH times."""

    def with_spread(value: float) -> float:
        return growth(replace(machine, hardware=changed(machine.hardware, "spread", value)))

    return bisect(with_spread, GROWTH, high=1.0)


def changed(hardware: Hardware, name: str, value: float) -> Hardware:
    """The hardware with another value of one constant."""
    return hardware.with_value(name, value, "calibrated")


def from_figure_7() -> MeasuredStep:
    """The paper's step on 8 GPUs by the minutes per epoch of figure 7, and not by its 29 hours."""
    there = paper.paper_step()
    seconds = EPOCH_MINUTES_ON_8 * 60 / recipe("bs256").steps_per_epoch
    share = there.backward_share * there.seconds / seconds
    return replace(there, seconds=seconds, backward_share=share)


@cache
def calibrated(*, by_latency: bool, by_spread: bool, figure_7: bool = False) -> ModelledCluster:
    """The paper's servers with the latency, the spread, both or neither calibrated."""
    there = from_figure_7() if figure_7 else paper.paper_step()
    machine = ModelledCluster(UNCALIBRATED, 8, tensors(), there)
    if by_latency:
        hardware = changed(machine.hardware, "network_latency", latency() * 1e6)
        machine = replace(machine, hardware=hardware)
    if by_spread:
        hardware = changed(machine.hardware, "spread", spread(machine))
        machine = replace(machine, hardware=hardware)
    return machine


def predict(name: str, machine: ModelledCluster) -> Prediction:
    """What this machine makes of bs8k on 256 GPUs."""
    step = machine.step(recipe("bs8k"), 256)
    network = machine.hardware.cluster.network
    return Prediction(
        name,
        latency=network.latency,
        spread=machine.hardware.spread.value,
        ring_ratio=ring_ratio([piece.size for piece in machine.gradient_buckets], network),
        growth=growth(machine),
        step=step.seconds,
        minutes=recipe("bs8k").total_steps * step.seconds / 60,
        efficiency=machine.efficiency(step),
    )


def predictions() -> list[Prediction]:
    """With both constants calibrated, with each, with neither, and from another reported number."""
    return [
        predict("both", calibrated(by_latency=True, by_spread=True)),
        predict("latency only", calibrated(by_latency=True, by_spread=False)),
        predict("spread only", calibrated(by_latency=False, by_spread=True)),
        predict("neither", calibrated(by_latency=False, by_spread=False)),
        predict(
            f"both, from {EPOCH_MINUTES_ON_8:g} min per epoch on 8 GPUs",
            calibrated(by_latency=True, by_spread=True, figure_7=True),
        ),
    ]


def table() -> str:
    """The predictions below what the paper reports, as Markdown."""
    reported = MINUTES_ON_256 * 60 / recipe("bs8k").total_steps
    head = ["calibrated", "latency, µs", "spread", "ring / h.-d.", "8 to 352", "step on 256, s"]
    head += ["90 epochs, min", "error", "efficiency"]
    given = ["the paper", "", "", f"{RING_RATIO:.2f}", f"{GROWTH - 1:+.1%}", f"{reported:.4f}"]
    given += [f"{MINUTES_ON_256:.1f}", "", "about 90%"]
    rows = [
        [
            each.name,
            f"{each.latency * 1e6:.4f}",
            f"{each.spread:.7f}",
            f"{each.ring_ratio:.2f}",
            f"{each.growth - 1:+.1%}",
            f"{each.step:.4f}",
            f"{each.minutes:.1f}",
            f"{each.minutes / MINUTES_ON_256 - 1:+.1%}",
            f"{each.efficiency:.1%}",
        ]
        for each in predictions()
    ]
    return markdown_table(head, [given, *rows])


def draw(folder: Path) -> None:
    """The time of a step with one worker on each GPU, with and without the fit, into figure.*."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    gpus = [8 << i for i in range(6)] + [352]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, both in (("both constants calibrated", True), ("neither", False)):
        machine = calibrated(by_latency=both, by_spread=both)
        steps = [machine.step(replace(recipe("bs8k"), workers=n), n).seconds for n in gpus]
        axes.plot(gpus, steps, "o-" if both else "s--", markersize=4, label=label)
    few = paper.paper_step().seconds
    hour = MINUTES_ON_256 * 60 / recipe("bs8k").total_steps
    axes.plot((8, 352), (few, few * GROWTH), "k*", mfc="none", ms=11, label="the paper's, given")
    axes.plot(256, hour, "k*", ms=11, label="the paper's hour, predicted")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda n, _: f"{n:g}")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("seconds of a step")
    axes.set_ylim(0.2, 0.28)
    axes.grid(alpha=0.3)
    axes.legend()
    # Text stays text, and the same numbers make the same files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "calibration"}):
        figure.savefig(folder / "figure.svg", metadata={"Date": None})
        figure.savefig(folder / "figure.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    print(table())
    draw(Path(__file__).parent)
