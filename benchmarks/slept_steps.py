"""Steps of real processes with a sleep as computation, which `python -m benchmarks.live` measures.

`python -m benchmarks.slept_steps` is one of these processes, run by lsgd.bench.job_process. Its
servers, its messages and the rest of a worker's step are those of training.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.emulated_link import EmulatedComm, NetworkCards
from lsgd.bench.job_process import main
from lsgd.comm import Comm, PairwiseComm
from lsgd.config import load_recipe
from lsgd.metric_sums import MetricSums
from lsgd.recipe import Recipe
from lsgd.strategy.clock import step_seconds
from lsgd.strategy.live import LOOK, LiveStrategy
from lsgd.workloads import open_workload


class SleptSteps:
    """An Assignment whose only candidate trains an epoch of an asynchronous recipe.

    Its setting has the overrides of a recipe with strategy.order=live, those of the recipe whose
    network is trained, and the file of the emulated network cards.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.comm, self.device = comm, device
        self.candidates: Mapping[str, Callable[[int], Any]] = {"epoch": self.epoch}

    def prepare(self, setting: tuple[list[str], list[str], str]) -> None:
        """Build the strategy, and raise this process to real-time priority if that is allowed."""
        overrides, network_overrides, cards = setting
        recipe = self.recipe = load_recipe(overrides)
        assert isinstance(self.comm, PairwiseComm)
        workload = open_workload(recipe, self.device)
        network = open_workload(load_recipe(network_overrides), self.device).network()
        self.network = EmulatedComm(self.comm, *machines(recipe, Path(cards)))
        # This comes before the threads of connections and servers, which inherit the priority.
        if hasattr(os, "sched_setscheduler"):
            with suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        tally = MetricSums(len(workload.count_names), self.device)
        self.strategy = LiveStrategy(recipe, workload, network, self.network, tally)
        self.loss = torch.zeros((), requires_grad=True)

    def epoch(self, number: int) -> dict[str, Any]:
        """Train an epoch by its number, and return the times of its pushes and its CPU usage.

        `pushes` has the time at which server 0 received each push, `cores` the CPU seconds of all
        processes per wall second, and `other_cores` those of all other work on the machine.
        """
        recipe, strategy, network = self.recipe, self.strategy, self.network
        seconds = step_seconds(
            recipe.cluster,
            workers=recipe.workers,
            seed=recipe.seed,
            epoch=number,
            steps=range(recipe.tickets),
        )[min(self.comm.rank, recipe.workers - 1)]
        for pair in (*network.to_servers, *network.to_workers):
            pair.received_at.clear()
        begin, cpu, busy = time.monotonic(), time.process_time(), busy_seconds()
        network.send_time.value = begin
        first = number * recipe.steps_per_epoch
        tasks = strategy.tasks(number, [*range(first, first + recipe.steps_per_epoch)])
        for task, drawn in zip(tasks, seconds.tolist(), strict=False):
            # The computation's sleep starts at the reply, so it includes the worker's own work
            # until the push.
            read = max(pair.delivered_at for pair in network.to_servers)
            for pair in network.to_servers:
                pair.computed_at = read + drawn
            strategy.begin(task, stop_requested=False)
            strategy.backward(self.loss)
            strategy.step(task)
        if strategy.server:
            while not strategy.server.wait_until_ended(LOOK):
                pass
        end = time.monotonic()
        used = (begin, end, time.process_time() - cpu, (busy_seconds() - busy) / (end - begin))
        strategy.synchronize()
        pushes = [moment for pair in network.to_workers for moment in pair.received_at]
        begins, ends, cpus, all_cores = zip(*self.comm.gather_objects(used), strict=True)
        at_servers = self.comm.gather_objects(sorted(pushes))
        cores = sum(cpus) / (max(ends) - min(begins))
        return {
            "pushes": at_servers[network.server_machines[0]][: recipe.tickets],
            "cores": cores,
            "other_cores": max(0.0, max(all_cores) - cores),
        }


def machines(recipe: Recipe, file: Path) -> tuple[NetworkCards, list[int]]:
    """Return the network cards of a recipe's cluster, and the machine of each server."""
    cluster, settings = recipe.cluster, recipe.strategy
    gbits = [cluster.worker_gbits] * recipe.workers
    homes = [*range(settings.servers)]
    if settings.topology == "central":
        homes = [recipe.workers + server for server in homes]
        gbits += [cluster.server_gbits] * settings.servers
    latency = cluster.latency_us / 1e6
    return NetworkCards(file, gbits, latency=latency, duplex=cluster.duplex), homes


def busy_seconds() -> float:
    """Return the seconds for which this machine's cores have been busy since boot."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main(SleptSteps, sys.argv[1:]))
