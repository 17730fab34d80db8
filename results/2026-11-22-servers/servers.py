"""Centralised against decentralised parameter servers in virtual time, for two small networks.

    python results/2026-11-22-servers/servers.py

prints the tables of the README beside it and draws figure.png and figure.svg there, in half a
minute. It is the comparison of Jäger et al. 2018 ("Parallelized training of deep NN: comparison of
current concepts and frameworks"), whose curves we do not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from lsgd.plan.throughput import simulate_throughput
from lsgd.recipe.strategies import StrategySettings, VirtualCluster
from lsgd.strategy.placement import PLACEMENTS, elements, place
from lsgd.tables import markdown_table

WORKERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class Net:
    """A network with the time of its step on one core, and the machines it is looked at on."""

    name: str
    sizes: tuple[int, ...]
    """The elements of its parameters, in their order."""
    cluster: VirtualCluster


NETWORKS = (
    Net(
        "LeNet-5",
        (150, 6, 2400, 16, 48000, 120, 10080, 84, 840, 10),
        VirtualCluster(step=0.007, server_gbits=1, worker_gbits=1, latency_us=100),
    ),
    Net(
        "LSTM 2x200",
        (2000000, 160000, 160000, 800, 800, 160000, 160000, 800, 800, 2000000, 10000),
        VirtualCluster(step=0.09, server_gbits=10, worker_gbits=10, latency_us=100),
    ),
)
"""LeNet-5 with 32 images of 28 x 28, and a language model of 10,000 words with 20 x 20 of them."""


@dataclass(frozen=True)
class Servers:
    """Where the parameters are: a curve of the figure."""

    name: str
    topology: str = "central"
    placement: str | None = None
    """None: all on one server, or as evenly as can be."""


CENTRAL = Servers("one central server")
EVEN = Servers("colocated, split evenly", "colocated")
ARMS = (
    CENTRAL,
    *(Servers(f"central as many, {each}", "central", each) for each in PLACEMENTS),
    *(Servers(f"colocated, {each}", "colocated", each) for each in PLACEMENTS),
    EVEN,
)


@cache
def rate(network: Net, strategy: str, servers: Servers, workers: int) -> float:
    """Batches per second."""
    count = 1 if servers is CENTRAL else workers
    sizes: Sequence[int] = network.sizes
    if servers is EVEN:
        sizes = [sum(sizes) // count] * count
    settings = StrategySettings(
        strategy,
        servers=count,
        topology=servers.topology,
        placement=servers.placement or "greedy",
    )
    return simulate_throughput(network.cluster, settings, sizes, workers).batches_per_second


def bound(network: Net, servers: Servers, workers: int) -> float:
    """What the network of the fullest server allows at most: a push and a reply of each batch, one
    way each.
    """
    if servers is CENTRAL:
        fullest, others = sum(network.sizes), workers
    elif servers is EVEN:
        fullest, others = sum(network.sizes) // workers, workers - 1
    else:
        slices = place(network.sizes, workers, servers.placement or "")
        fullest = max(map(elements, slices))
        others = workers - (servers.topology == "colocated")
    rate_of_link = network.cluster.server_gbits * 1e9 / 8
    return rate_of_link / (4 * fullest) * workers / others if others else float("inf")


def rates_table(network: Net, strategy: str) -> str:
    """Batches per second over the number of workers, and the speed-up of the most."""
    rows = []
    for servers in ARMS:
        rates = [rate(network, strategy, servers, workers) for workers in WORKERS]
        speed_up = rates[-1] * network.cluster.step
        limit = bound(network, servers, WORKERS[-1])
        rows += [
            [servers.name, *(f"{each:.3g}" for each in rates), f"{speed_up:.1f}", f"{limit:.3g}"]
        ]
    head = [f"{network.name}, {strategy}", *map(str, WORKERS), "speed-up on 16", "bound on 16"]
    return markdown_table(head, rows)


def tables() -> list[str]:
    """The tables of the README."""
    return [rates_table(network, name) for network in NETWORKS for name in ("sync", "async")]


def draw(folder: Path) -> None:
    """The speed-up over one worker without servers, for both networks and strategies."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    for row, network in zip(figure.subplots(2, 2), NETWORKS, strict=True):
        for axes, strategy in zip(row, ("sync", "async"), strict=True):
            for number, servers in enumerate(ARMS):
                speed_ups = [
                    rate(network, strategy, servers, workers) * network.cluster.step
                    for workers in WORKERS
                ]
                style = {"central": "-o", "colocated": "--s"}[servers.topology]
                axes.plot(
                    WORKERS, speed_ups, style, markersize=4, color=f"C{number}", label=servers.name
                )
            axes.plot(WORKERS, WORKERS, "k:", label="as many as workers")
            gbits = f"{network.cluster.server_gbits:g} Gbit/s"
            axes.set_title(f"{network.name}, {strategy}, {gbits}; virtual time")
            axes.set(xlabel="workers", ylabel="speed-up")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda count, _: f"{count:g}")
            axes.yaxis.set_major_formatter(lambda speed_up, _: f"{speed_up:g}")
            axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    # Text stays text, and the same numbers make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "servers"}):
        figure.savefig(folder / "figure.svg", metadata={"Date": None})
        figure.savefig(folder / "figure.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    print("\n\n".join(tables()))
    draw(Path(__file__).parent)
