"""Autotuning: workers_per_pass=auto and channels_last=auto, by measurement on a throwaway model.

On a CPU the largest micro-batch is not the fastest, since its images outgrow the caches; on a GPU
the largest may not fit. So micro-batches of 1, 2, 4, … workers are timed. Whether convolutions are
faster in channels_last depends on the network, the size of its images and the machine. So then both
formats are timed, with the workers that were chosen or given.
"""

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lsgd
from lsgd import messages
from lsgd.comm import Comm, broadcast_from_rank0
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.inputs import Inputs
from lsgd.job.device import (
    cpu,
    device_name,
    empty_cache,
    peak_device_memory,
    reset_peak_device_memory,
    synchronize,
    total_device_memory,
)
from lsgd.job.launcher import cores, detect_launch, omp_num_threads
from lsgd.job.system import memory_limit, peak_memory
from lsgd.learner import Learner
from lsgd.paths import cache_dir
from lsgd.profile.phases import reporting_phases
from lsgd.recipe import InputsSettings, Recipe, Schedule, StrategySettings
from lsgd.recipe.checks import check_world_size
from lsgd.recipe.fields import AUTO, TIMED, as_override
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.strategy.tasks import hosted_workers
from lsgd.untrusted_files import parse_json, read_bounded

TIME_BUDGET = 10.0
"""The time in seconds, without warm-up; a larger micro-batch that would exceed it is not tried."""
MIN_RELATIVE_SPEED = 0.7
"""The share of the best speed below which no larger micro-batch is tried."""
LAYOUT_BUDGET = 5.0
"""The time in seconds after which memory formats are not compared once more."""
LAYOUT_STEP = 0.4
"""The time in seconds of one step in this comparison."""
LAYOUT_ROUNDS = 4
"""The largest number of comparisons, of which the ratio is the median."""
MIN_LAYOUT_GAIN = 0.03
"""The least gain for which a memory format is taken that is not the default."""
DECISIVE = (
    *("workers", "worker_batch", "precision", "label_smoothing"),
    *("padding", "batching", "deterministic", "noise_scale"),
)
"""The fields on which the fastest values depend, besides the groups model and data."""
PATHS = ("root", "index", "skip_list", "skip")
"""The fields of the group data on which they do not depend."""
MAX_MEMORY_SHARE = 0.85
"""The share of a GPU's memory that a micro-batch may take; loader and fragments need the rest."""


def resolve_auto_fields(
    recipe: Recipe,
    started_with: Mapping[str, Any],
    comm: Comm,
    device: torch.device,
) -> tuple[Recipe, list[str]]:
    """Replace auto in workers_per_pass and channels_last by the fastest values, for all processes.

    Returns the recipe and log lines about the choices; a recipe without auto is returned unchanged.
    A resumed run keeps the values that it was `started_with`, since its last bits depend on them;
    raises UsageError if it makes one micro-batch per step, and a noise scale needs two.
    """
    only = _only_values(recipe)
    lines: list[str] = []
    for name in [each for each in TIMED if getattr(recipe, each) == AUTO]:
        if name in only:
            recipe = replace(recipe, **{name: only[name]})
        elif name in started_with:
            recipe = replace(recipe, **{name: started_with[name]})
            lines.append(f"{name}={as_override(started_with[name])}, as in the saved run")
    if lines:
        check_world_size(recipe, comm.world_size)
    unknown = [name for name in TIMED if getattr(recipe, name) == AUTO]
    if not unknown:
        return recipe, lines
    record = ChoiceRecord(recipe, comm, device)
    if cached := broadcast_from_rank0(comm, record.read):
        lines += [f"{name}={as_override(cached[name])}, as timed before" for name in unknown]
        return replace(recipe, **cached), [*lines, f"that choice: {record.file}"]
    if recipe.workers_per_pass == AUTO:
        recipe, line = _resolve_workers_per_pass(recipe, comm, device)
        lines.append(line)
    if recipe.channels_last == AUTO:
        recipe, line = _resolve_channels_last(recipe, comm, device)
        lines.append(line)
    if comm.rank == 0:
        record.write({name: getattr(recipe, name) for name in unknown})
    return recipe, lines


class ChoiceRecord:
    """The file in the user's cache with the values that were fastest for a network on a machine.

    With it the same command makes the same choice again, and so the same bits.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        launch = detect_launch()
        data = asdict(recipe.data)
        self.timed = {
            **{name: getattr(recipe, name) for name in (*TIMED, *DECISIVE)},
            "model": asdict(recipe.model),
            "data": {name: data[name] for name in data if name not in PATHS},
            "device": cpu() if device.type == "cpu" else device_name(device),
            "cores": cores(launch),
            "threads": omp_num_threads(),
            "processes": [comm.world_size, launch.local_size],
            "versions": [lsgd.__version__, torch.__version__],
        }
        """All that the choice depends on; the fields that are chosen are auto."""
        content = json.dumps(self.timed, sort_keys=True, default=str)
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        self.timed = json.loads(content)
        try:
            self.file: Path | None = cache_dir() / "autotune" / f"{name}.json"
        except UsageError:  # no home folder
            self.file = None

    def read(self) -> dict[str, Any]:
        """Return the recorded values by field; an empty dictionary if there are none."""
        if self.file is None:
            return {}
        try:
            found = parse_json(read_bounded(self.file))
            values: dict[str, Any] = found["fastest"]
            is_whole = found["timed"] == self.timed and all(
                type(values[name]) is kind
                for name, kind in (("workers_per_pass", int), ("channels_last", bool))
                if self.timed[name] == AUTO
            )
        except (OSError, ValueError, LookupError, TypeError):
            return {}
        return values if is_whole else {}

    def write(self, values: dict[str, Any]) -> None:
        """Record the fastest values by field, unless the cache cannot be written."""
        if self.file is None:
            return
        content = json.dumps({"fastest": values, "timed": self.timed}, indent=1)
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.file) as file:
                file.write(content.encode())


def _only_values(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of TIMED in which this recipe has no choice, with their values."""
    only: dict[str, Any] = {}
    if not recipe.strategy.is_synchronous:
        only["workers_per_pass"] = 1  # each worker pushes its own gradients
    if recipe.data.workload != "images":
        only["channels_last"] = False
    return only


def _resolve_workers_per_pass(
    recipe: Recipe, comm: Comm, device: torch.device
) -> tuple[Recipe, str]:
    if comm.rank == 0:
        messages.show("timing micro-batches of 1, 2, 4, … workers")
    hosted = len(hosted_workers(recipe, comm.world_size, comm.rank))
    if recipe.noise_scale and comm.world_size == 1:
        hosted = max(hosted // 2, 1)  # for a noise scale a step needs at least two micro-batches
    # All processes measure at the same time, since those of a machine share its caches and memory.
    mine = measure_speeds(recipe, hosted, device)
    _free_memory(device)
    # A process that hosts no workers has measured nothing.
    everyone = [speed_of for speed_of in comm.gather_objects(mine) if speed_of]
    workers, speed = choose_workers_per_pass(everyone)
    largest = max(everyone[0])
    line = f"workers_per_pass={workers}: {speed / 1000:.1f} thousand examples/s, of 1 … {largest}"
    return replace(recipe, workers_per_pass=workers), line


def _resolve_channels_last(recipe: Recipe, comm: Comm, device: torch.device) -> tuple[Recipe, str]:
    if comm.rank == 0:
        messages.show("timing steps in channels_last and channels first")
    hosted = len(hosted_workers(recipe, comm.world_size, comm.rank))
    mine = measure_layouts(recipe, hosted, device)
    _free_memory(device)
    ratios = [ratio for ratio in comm.gather_objects(mine) if ratio is not None]
    is_chosen, ratio = choose_channels_last(ratios)
    line = f"channels_last={as_override(is_chosen)}: {ratio:.2f} times the time of channels first"
    return replace(recipe, channels_last=is_chosen), line


def _free_memory(device: torch.device) -> None:
    """Release the memory of the throwaway models, or a loader on the GPU could allocate none."""
    if device.type != "cpu":
        gc.collect()
        empty_cache(device)


def choose_workers_per_pass(everyone: list[dict[int, float]]) -> tuple[int, float]:
    """Return the workers per micro-batch with which the slowest process is fastest, and its speed.

    The slowest process counts, since the others wait for it. Only numbers that all processes have
    timed are considered.
    """
    common = [w for w in everyone[0] if all(w in each for each in everyone)]
    slowest = {w: min(each[w] for each in everyone) for w in common}
    best = max(common, key=lambda w: slowest[w])
    return best, slowest[best]


def choose_channels_last(ratios: list[float]) -> tuple[bool, float]:
    """Return whether channels_last is faster, and its time in multiples of channels first's.

    `ratios` has these multiples of each process; the process that gains least decides. A gain of
    less than MIN_LAYOUT_GAIN is no reason to leave the default format.
    """
    ratio = max(ratios)
    return ratio < 1 - MIN_LAYOUT_GAIN, ratio


def measure_speeds(recipe: Recipe, hosted: int, device: torch.device) -> dict[int, float]:
    """Measure the training speed, in examples/s, of micro-batches of 1, 2, 4, … workers.

    It ends at TIME_BUDGET, MIN_RELATIVE_SPEED or the memory of the device.
    """
    learner = _throwaway_learner(recipe, device)
    inputs = learner.workload.inputs()
    speed_of: dict[int, float] = {}
    spent = 0.0
    for workers in (2**power for power in range(hosted.bit_length())):
        examples = workers * recipe.worker_batch
        only = MicroBatch(0, np.arange(examples), range(workers))
        _reset_memory(device)
        try:
            task = StepTask(0, examples, workers, [only])
            times = _times(learner, task, inputs, time.perf_counter)
        except torch.OutOfMemoryError:
            if not speed_of:
                raise
            break
        if speed_of and _exceeds_memory_share(device):
            break
        speed_of[workers] = examples / min(times)
        spent += sum(times)
        slower = speed_of[workers] < MIN_RELATIVE_SPEED * max(speed_of.values())
        next_takes = 2 * sum(times)
        if spent + next_takes > TIME_BUDGET or slower or _may_exceed_memory(device):
            break
    return speed_of


def measure_layouts(recipe: Recipe, hosted: int, device: torch.device) -> float | None:
    """Measure the time of a micro-batch in channels_last, in multiples of that in channels first.

    A micro-batch has the recipe's workers, and as many images of each as take LAYOUT_STEP seconds.
    On a CPU the times are those of the processor, which other programs change less. Returns None
    without hosted workers, and 1, which keeps channels first, if a GPU's memory cannot hold both.
    """
    if not hosted:
        return None
    try:
        return _layout_ratio(recipe, hosted, device)
    except torch.OutOfMemoryError:
        return 1.0


def _layout_ratio(recipe: Recipe, hosted: int, device: torch.device) -> float:
    begin = time.perf_counter()
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    workers = min(recipe.micro_batch_workers, hosted)
    learners = {
        layout: _throwaway_learner(replace(recipe, channels_last=layout), device)
        for layout in (False, True)
    }
    inputs = learners[False].workload.inputs()

    def seconds(layout: bool, images: int) -> float:
        examples = workers * images
        only = MicroBatch(0, np.arange(examples), range(workers))
        learner = learners[layout]
        return min(_times(learner, StepTask(0, examples, workers, [only]), inputs, clock))

    few = min(2, recipe.worker_batch)  # the fewest images that BN accepts
    affordable = int(few * LAYOUT_STEP / seconds(False, few))
    images = min(recipe.worker_batch, max(few, affordable))
    ratios: list[float] = []
    # In turns, so that a machine that becomes busy slows both.
    while len(ratios) < LAYOUT_ROUNDS:
        ratios.append(seconds(True, images) / seconds(False, images))
        if time.perf_counter() - begin > LAYOUT_BUDGET:
            break
    return statistics.median(ratios)


def _throwaway_learner(recipe: Recipe, device: torch.device) -> Learner:
    """Create a model and its training state to time on synthetic examples, in this process alone.

    With a tiny lr nothing can diverge; a micro-batch costs the same with any strategy.
    """
    settings: dict[str, Any] = {} if recipe.channels_last != AUTO else {"channels_last": False}
    timed = replace(
        recipe,
        schedule=Schedule(reference_lr=1e-9, milestones=[]),
        inputs=InputsSettings(loader="synthetic"),
        strategy=StrategySettings(),
        **settings,
    )
    return Learner(timed, SingleComm(), device)


def _times(
    learner: Learner, task: StepTask, inputs: Inputs, clock: Callable[[], float]
) -> list[float]:
    """Measure the seconds of a training step's forward and backward passes, up to three times.

    They run from the task's batches to its gradients, after a warm-up. Work that is done once per
    step, whatever its micro-batches, is left out: it would favour large ones.
    """
    begin = end = 0.0

    def batches() -> Iterator[Any]:
        nonlocal begin
        ready = list(inputs.train(task.micro_batches))
        synchronize(learner.device)
        begin = clock()
        yield from ready

    def listen(phase: str) -> None:
        nonlocal end
        if phase == "communication":
            synchronize(learner.device)
            end = clock()

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
