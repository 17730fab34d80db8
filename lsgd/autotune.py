"""workers_per_pass=auto: how many workers one pass should carry on this machine.

On a CPU the largest pass is not the fastest, since its images outgrow the caches, and on a GPU the
largest may not fit. So passes of 1, 2, 4, … workers are timed, on a model that is thrown away.
"""

import gc
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.inputs import Inputs
from lsgd.job.launcher import detect
from lsgd.learner import Learner
from lsgd.profile.phases import reporting_phases
from lsgd.recipe import InputsSettings, Recipe, StrategySettings
from lsgd.recipe.fields import AUTO
from lsgd.rules.sampler import Pass
from lsgd.step import train_step
from lsgd.strategy import Task
from lsgd.strategy.tasks import hosted_workers

BUDGET = 10.0
"""Larger passes are tried until the timed ones have taken these seconds, warming up apart, …"""
WORSE = 0.7
"""… or until one is slower than this share of the best speed."""
FULL = 0.85
"""The share of a GPU's memory that a pass may take; the rest is for the loader and fragments."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The bytes that a container may take, or `max`."""


def with_fastest_pass(
    recipe: Recipe,
    started_with: int | None,
    comm: Comm,
    device: torch.device,
) -> tuple[Recipe, list[str]]:
    """The recipe with a number for workers_per_pass=auto, the same on every process, and a line
    about it; any other recipe as it is.

    A run that is resumed keeps the number it was `started_with`, on which its last bits depend.
    """
    if recipe.workers_per_pass != AUTO:
        return recipe, []
    if not recipe.strategy.synchronous:
        return replace(recipe, workers_per_pass=1), []  # each worker has passes of its own
    if started_with is not None:
        line = f"workers_per_pass={started_with}, with which the run was saved"
        return replace(recipe, workers_per_pass=started_with), [line]
    if comm.rank == 0:
        print("timing passes of 1, 2, 4, … workers", flush=True)
    hosted = len(hosted_workers(recipe, comm.world_size, comm.rank))
    # All processes at once, since those of a machine share its caches and memory.
    mine = speeds(recipe, hosted, device)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # or the loader's part of the GPU finds no memory
    # Of those that have workers: another has no speed.
    everyone = [speed_of for speed_of in comm.gather_objects(mine) if speed_of]
    workers, speed = choose(everyone)
    largest = max(everyone[0])
    line = f"workers_per_pass={workers}: {speed / 1000:.1f} thousand examples/s, of 1 … {largest}"
    return replace(recipe, workers_per_pass=workers), [line]


def choose(everyone: list[dict[int, float]]) -> tuple[int, float]:
    """The workers per pass, of those that all processes have timed, with which the slowest of them
    is fastest, as the others wait for it; and its examples/s."""
    common = [w for w in everyone[0] if all(w in each for each in everyone)]
    slowest = {w: min(each[w] for each in everyone) for w in common}
    best = max(common, key=lambda w: slowest[w])
    return best, slowest[best]


def speeds(recipe: Recipe, hosted: int, device: torch.device) -> dict[int, float]:
    """Examples/s of passes of 1, 2, 4, … workers, as far as it makes sense to try."""
    # With hardly any lr nothing can diverge; and a pass is the same with any strategy.
    timed = replace(
        recipe,
        schedule=replace(recipe.schedule, reference_lr=1e-9),
        inputs=InputsSettings(loader="synthetic"),
        strategy=StrategySettings(),
    )
    learner = Learner(timed, SingleComm(), device)
    inputs = learner.workload.inputs()
    speed_of: dict[int, float] = {}
    spent = 0.0
    for workers in (2**power for power in range(hosted.bit_length())):
        examples = workers * recipe.worker_batch
        only = Pass(0, np.arange(examples), range(workers))
        _forget_memory(device)
        try:
            times = _times(learner, Task(0, examples, workers, [only]), inputs)
        except torch.OutOfMemoryError:
            if not speed_of:
                raise
            break
        if speed_of and _too_full(device):
            break
        speed_of[workers] = examples / min(times)
        spent += sum(times)
        slower = speed_of[workers] < WORSE * max(speed_of.values())
        if spent > BUDGET or slower or _nearly_full(device):
            break
    return speed_of


def _times(learner: Learner, task: Task, inputs: Inputs) -> list[float]:
    """Seconds of a task, from its batches to its gradients, when nothing is in its way.

    What comes once per step, whatever its passes, is left out: it would favour large ones.
    """
    begin = end = 0.0

    def batches() -> Iterator[Any]:
        nonlocal begin
        ready = list(inputs.train(task.passes))
        _finish(learner.device)
        begin = time.perf_counter()
        yield from ready

    def listen(phase: str) -> None:
        nonlocal end
        if phase == "communication":
            _finish(learner.device)
            end = time.perf_counter()

    times: list[float] = []
    with reporting_phases(learner.strategy.timed(), listen):
        train_step(learner, task, batches())  # the first one also compiles and allocates
        while len(times) < 3 and sum(times) < 1:
            train_step(learner, task, batches())
            times.append(end - begin)
    return times


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget_memory(device: torch.device) -> None:
    """Give back the memory of smaller passes, so that what the next one reserves is its own."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _too_full(device: torch.device) -> bool:
    """Whether the pass just timed leaves too little of the GPU to others."""
    if device.type != "cuda":
        return False
    memory = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) > FULL * memory


def _nearly_full(device: torch.device) -> bool:
    """Whether twice the memory may be more than there is; a GPU says so itself, a CPU's system
    ends the process."""
    if device.type == "cuda":
        return False
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 2 * peak * detect().local_size > _memory()


def _memory() -> int:
    """The bytes that the processes of this machine may take."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        return physical
