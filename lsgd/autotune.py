"""Autotuning for workers_per_pass=auto: the number of workers per micro-batch, by measurement.

On a CPU the largest micro-batch is not the fastest, since its images outgrow the caches; on a GPU
the largest may not fit. So micro-batches of 1, 2, 4, … workers are timed on a throwaway model.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.inputs import Inputs
from lsgd.job.device import (
    empty_cache,
    peak_device_memory,
    reset_peak_device_memory,
    synchronize,
    total_device_memory,
)
from lsgd.job.launcher import detect_launch
from lsgd.job.system import memory_limit, peak_memory
from lsgd.learner import Learner
from lsgd.profile.phases import reporting_phases
from lsgd.recipe import InputsSettings, Recipe, StrategySettings
from lsgd.recipe.checks import check_world_size
from lsgd.recipe.fields import AUTO
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.strategy.tasks import hosted_workers

TIME_BUDGET = 10.0
"""The time in seconds, without warm-up, after which no larger micro-batch is tried."""
MIN_RELATIVE_SPEED = 0.7
"""The share of the best speed below which no larger micro-batch is tried."""
MAX_MEMORY_SHARE = 0.85
"""The share of a GPU's memory that a micro-batch may take; loader and fragments need the rest."""


def resolve_workers_per_pass(
    recipe: Recipe,
    started_with: int | None,
    comm: Comm,
    device: torch.device,
) -> tuple[Recipe, list[str]]:
    """Replace workers_per_pass=auto in a recipe by the fastest number, equal on all processes.

    Returns the recipe and log lines about the choice; any other recipe is returned unchanged. A
    resumed run keeps the number that it was `started_with`, since its last bits depend on it;
    raises UsageError if it makes one micro-batch per step, and a noise scale needs two.
    """
    if recipe.workers_per_pass != AUTO:
        return recipe, []
    if not recipe.strategy.is_synchronous:
        return replace(recipe, workers_per_pass=1), []  # each worker pushes its own gradients
    if started_with is not None:
        line = f"workers_per_pass={started_with}, as in the saved run"
        resumed = replace(recipe, workers_per_pass=started_with)
        check_world_size(resumed, comm.world_size)
        return resumed, [line]
    if comm.rank == 0:
        print("timing micro-batches of 1, 2, 4, … workers", flush=True)
    hosted = len(hosted_workers(recipe, comm.world_size, comm.rank))
    if recipe.noise_scale and comm.world_size == 1:
        hosted = max(hosted // 2, 1)  # for a noise scale a step needs at least two micro-batches
    # All processes measure at the same time, since those of a machine share its caches and memory.
    mine = measure_speeds(recipe, hosted, device)
    if device.type != "cpu":
        gc.collect()
        empty_cache(device)  # or a loader on the GPU could not allocate its memory
    # A process that hosts no workers has measured nothing.
    everyone = [speed_of for speed_of in comm.gather_objects(mine) if speed_of]
    workers, speed = choose_workers_per_pass(everyone)
    largest = max(everyone[0])
    line = f"workers_per_pass={workers}: {speed / 1000:.1f} thousand examples/s, of 1 … {largest}"
    return replace(recipe, workers_per_pass=workers), [line]


def choose_workers_per_pass(everyone: list[dict[int, float]]) -> tuple[int, float]:
    """Return the workers per micro-batch with which the slowest process is fastest, and its speed.

    The slowest process counts, since the others wait for it. Only numbers that all processes have
    timed are considered.
    """
    common = [w for w in everyone[0] if all(w in each for each in everyone)]
    slowest = {w: min(each[w] for each in everyone) for w in common}
    best = max(common, key=lambda w: slowest[w])
    return best, slowest[best]


def measure_speeds(recipe: Recipe, hosted: int, device: torch.device) -> dict[int, float]:
    """Measure the training speed, in examples/s, of micro-batches of 1, 2, 4, … workers.

    It ends at TIME_BUDGET, MIN_RELATIVE_SPEED or the memory of the device.
    """
    # With a tiny lr nothing can diverge; a micro-batch costs the same with any strategy.
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
        only = MicroBatch(0, np.arange(examples), range(workers))
        _reset_memory(device)
        try:
            times = _times(learner, StepTask(0, examples, workers, [only]), inputs)
        except torch.OutOfMemoryError:
            if not speed_of:
                raise
            break
        if speed_of and _exceeds_memory_share(device):
            break
        speed_of[workers] = examples / min(times)
        spent += sum(times)
        slower = speed_of[workers] < MIN_RELATIVE_SPEED * max(speed_of.values())
        if spent > TIME_BUDGET or slower or _may_exceed_memory(device):
            break
    return speed_of


def _times(learner: Learner, task: StepTask, inputs: Inputs) -> list[float]:
    """Measure the seconds of a training step's forward and backward passes, up to three times.

    They run from the task's batches to its gradients, after a warm-up. Work that is done once per
    step, whatever its micro-batches, is left out: it would favour large ones.
    """
    begin = end = 0.0

    def batches() -> Iterator[Any]:
        nonlocal begin
        ready = list(inputs.train(task.micro_batches))
        synchronize(learner.device)
        begin = time.perf_counter()
        yield from ready

    def listen(phase: str) -> None:
        nonlocal end
        if phase == "communication":
            synchronize(learner.device)
            end = time.perf_counter()

    times: list[float] = []
    with reporting_phases(learner.strategy.phases(), listen):
        train_step(learner, task, batches())  # warm-up: compiles and allocates
        while len(times) < 3 and sum(times) < 1:
            train_step(learner, task, batches())
            times.append(end - begin)
    return times


def _reset_memory(device: torch.device) -> None:
    """Release cached GPU memory and reset its recorded peak before the next measurement."""
    empty_cache(device)
    reset_peak_device_memory(device)


def _exceeds_memory_share(device: torch.device) -> bool:
    """Return whether the micro-batch just timed exceeded the allowed share of the GPU's memory."""
    if device.type == "cpu":
        return False
    return peak_device_memory(device) > MAX_MEMORY_SHARE * total_device_memory(device)


def _may_exceed_memory(device: torch.device) -> bool:
    """Return whether twice the host memory of all local processes may exceed the machine's limit.

    Only for a CPU, where the system kills a process that runs out of memory; a GPU raises an error.
    """
    if device.type != "cpu":
        return False
    return 2 * peak_memory() * detect_launch().local_size > memory_limit()
