"""Steps of real processes whose computation is a sleep: what `python -m lsgd.bench live` measures.

`python -m lsgd.bench.slept_steps` is one of these processes, as lsgd.bench.member runs them. Its
servers, its messages and what a worker does beside computing are those of training.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lsgd.bench.emulated_link import Cards, EmulatedComm
from lsgd.bench.member import main
from lsgd.comm import Comm, Pairing
from lsgd.config import load_recipe
from lsgd.recipe import Recipe
from lsgd.strategy.clock import step_seconds
from lsgd.strategy.live import LOOK, Live
from lsgd.tally import Tally
from lsgd.workloads import open_workload


class SleptSteps:
    """An Assignment whose setting is the words of a recipe with strategy.order=live, those of the
    one whose network is trained, and the file of the cards; its candidate trains an epoch."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.comm, self.device = comm, device
        self.candidates: Mapping[str, Callable[[int], Any]] = {"epoch": self.epoch}

    def prepare(self, setting: tuple[list[str], list[str], str]) -> None:
        """Make the strategy; from now on this process goes before other work of the machine, where
        that is allowed."""
        words, network_words, cards = setting
        recipe = self.recipe = load_recipe(words)
        assert isinstance(self.comm, Pairing)
        workload = open_workload(recipe, self.device)
        network = open_workload(load_recipe(network_words), self.device).network()
        self.network = EmulatedComm(self.comm, *machines(recipe, Path(cards)))
        # Before the threads of connections and servers, which have their maker's.
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        tally = Tally(len(workload.counts), self.device)
        self.strategy = Live(recipe, workload, network, self.network, tally)
        self.loss = torch.zeros((), requires_grad=True)

    def epoch(self, number: int) -> dict[str, Any]:
        """Train an epoch of this number; when server 0 had each push, the CPU seconds of all
        processes over the wall seconds, and those of all else on the machine."""
        recipe, strategy, network = self.recipe, self.strategy, self.network
        seconds = step_seconds(
            recipe.cluster,
            workers=recipe.workers,
            seed=recipe.seed,
            epoch=number,
            steps=range(recipe.tickets),
        )[min(self.comm.rank, recipe.workers - 1)]
        for pair in (*network.to_servers, *network.to_workers):
            pair.arrivals.clear()
        begin, cpu, busy = time.monotonic(), time.process_time(), busy_seconds()
        network.moment.value = begin
        first = number * recipe.steps_per_epoch
        tasks = strategy.tasks(number, [*range(first, first + recipe.steps_per_epoch)])
        for task, drawn in zip(tasks, seconds.tolist(), strict=False):
            # What a worker does between a reply and a push is part of its computation.
            read = max(pair.through for pair in network.to_servers)
            for pair in network.to_servers:
                pair.ready = read + drawn
            strategy.read(task, leave=False)
            strategy.backward(self.loss)
            strategy.give(task)
        if strategy.server:
            while not strategy.server.ended(LOOK):
                pass
        end = time.monotonic()
        used = (begin, end, time.process_time() - cpu, (busy_seconds() - busy) / (end - begin))
        strategy.settle()
        pushes = [moment for pair in network.to_workers for moment in pair.arrivals]
        begins, ends, cpus, all_cores = zip(*self.comm.gather_objects(used), strict=True)
        at_servers = self.comm.gather_objects(sorted(pushes))
        cores = sum(cpus) / (max(ends) - min(begins))
        return {
            "pushes": at_servers[network.homes[0]][: recipe.tickets],
            "cores": cores,
            "other_cores": max(0.0, max(all_cores) - cores),
        }


def machines(recipe: Recipe, file: Path) -> tuple[Cards, list[int]]:
    """The cards of the cluster of a recipe, and the machine of each server."""
    cluster, settings = recipe.cluster, recipe.strategy
    gbits = [cluster.worker_gbits] * recipe.workers
    homes = [*range(settings.servers)]
    if settings.topology == "central":
        homes = [recipe.workers + server for server in homes]
        gbits += [cluster.server_gbits] * settings.servers
    latency = cluster.latency_us / 1e6
    return Cards(file, gbits, latency=latency, duplex=cluster.duplex), homes


def busy_seconds() -> float:
    """The seconds that the cores of this machine have been busy since it began."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main(SleptSteps, sys.argv[1:]))
