"""Autotuning: the fastest execution fields of a network on this machine, by timed steps.

    python -m lsgd.train recipe=bs256        # hardware=auto, the default: at most 15 s at the start
    python -m lsgd.autotune recipe=bs256     # longer, and with compile; later runs take its choice

On a CPU channels_last may halve the time of a convolution, the largest micro-batch is not the
fastest, since its images outgrow the caches, and a second thread may slow a small network down; on
a GPU the largest micro-batch may not fit. So steps of a throwaway model are timed: one field after
the other, each value beside the fastest setting so far, in turns. A choice is kept in the user's
cache, so that the same command trains to the same bits again.
"""

import gc
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lsgd
from lsgd import messages, recipe_parser
from lsgd.comm import Comm, ElasticComm, broadcast_from_rank0, joined
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.inputs import Inputs
from lsgd.job.command import run_command
from lsgd.job.device import (
    cpu,
    device_name,
    empty_cache,
    peak_device_memory,
    pick_device,
    reset_peak_device_memory,
    synchronize,
    total_device_memory,
)
from lsgd.job.launcher import cores, detect_launch, omp_num_threads
from lsgd.job.system import memory_limit, peak_memory
from lsgd.job.threads import choose_threads
from lsgd.learner import Learner, cpu_threads
from lsgd.own_parts import first_line
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

MAX_SECONDS, MAX_SHARE = 15.0, 0.02
"""The most seconds at the start of a run, and the most as a share of the run's time.

On a CPU they are those of the main thread: a busy machine takes up to BUSY times as long.
"""
BUSY = 2
MIN_SECONDS = 1.0
"""The time below which no choice is reliable; a run whose share is less keeps the defaults."""
ROUNDS = 4
"""The number of comparisons of two settings, of which the ratio is the median."""
UNITS_PER_RUN = 80
"""The number of timings that fit into the whole time; each is as long as its share, or one step."""
MIN_GAIN = 0.03
"""The least gain for which a default is left: the error of such a ratio."""
DECISIVE = (
    *("workers", "worker_batch", "precision", "label_smoothing"),
    *("padding", "batching", "deterministic", "noise_scale"),
)
"""The fields on which the fastest values depend, besides the groups model and data."""
UNTIMED = (
    *("root", "index", "stage", "skip_list", "skip", "mean", "std"),
    *("train_examples", "val_examples", "test_examples"),
    *("start", "start_sha256", "start_optimizer", "new_head"),
)
"""The fields of the groups model and data on which they do not depend, and pretrained weights."""
MAX_MEMORY_SHARE = 0.85
"""The share of a GPU's memory that a micro-batch may take; loader and fragments need the rest."""
NOT_POSSIBLE = math.inf
"""The ratio of step times for a setting that was not timed: it does not fit, or no time is left."""


def resolve_auto_fields(
    recipe: Recipe, started_with: Mapping[str, Any], comm: Comm, device: torch.device
) -> tuple[Recipe, list[str]]:
    """Replace auto in the fields of TIMED by the fastest values, the same on all processes.

    Returns the recipe and a log line about the choice; a recipe without auto is returned unchanged.
    A resumed run keeps the values that it was `started_with`, since its last bits depend on them;
    raises UsageError if it makes one micro-batch per step, and a noise scale needs two. A process
    that has restarted while the others go on takes the values of process 0.
    """
    if AUTO not in (getattr(recipe, name) for name in TIMED):
        return recipe, []
    if isinstance(comm, ElasticComm) and comm.is_outside_group:
        of_process_0: dict[str, Any] = comm.publish("timed", {})
        return replace(recipe, **of_process_0), []
    resolved, lines = _resolve_together(recipe, started_with, comm, device)
    if isinstance(comm, ElasticComm):
        comm.publish("timed", {name: getattr(resolved, name) for name in TIMED})
    return resolved, lines


def _resolve_together(
    recipe: Recipe, started_with: Mapping[str, Any], comm: Comm, device: torch.device
) -> tuple[Recipe, list[str]]:
    choice = _Choice(recipe, comm, device)
    if not choice.open_fields:
        return choice.default, []
    if started_with:
        kept = kept_values(started_with)
        kept = {name: kept.get(name, DEFAULTS[name]) for name in choice.open_fields}
        if kept.get("threads"):  # on a machine with fewer cores
            kept["threads"] = min(kept["threads"], _most_threads())
        kept_recipe = replace(choice.default, **kept)
        check_world_size(kept_recipe, comm.world_size)
        return kept_recipe, [f"{_overrides(kept)}, as in the saved run"]
    if recipe.is_short or broadcast_from_rank0(
        comm, lambda: recipe.total_steps <= choice.record.short_steps()
    ):
        return choice.default, [choice.defaults_line()]
    if found := broadcast_from_rank0(comm, choice.record.read):
        line = f"{_overrides(found)}, as timed before: {choice.record.file}"
        return replace(choice.default, **found), [line]
    return choice.time(MAX_SECONDS)


def kept_values(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of TIMED in the recipe of a checkpoint, as far as they are possible."""
    return {
        name: saved[name]
        for name, is_possible in _POSSIBLE.items()
        if name in saved and is_possible(saved[name])
    }


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_POSSIBLE: dict[str, Callable[[Any], bool]] = {
    "channels_last": lambda value: type(value) is bool,
    "workers_per_pass": _is_count,
    "threads": lambda value: value is None or _is_count(value),
    "compile": lambda value: type(value) is bool,
}
"""Whether a value from a file is one that each field of TIMED can be set to."""
DEFAULTS: dict[str, Any] = {name: getattr(Recipe, name) for name in TIMED}
"""The values of TIMED with hardware=none, the defaults of the recipe."""


def _overrides(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={as_override(value)}" for name, value in values.items())


def _most_threads() -> int:
    return choose_threads(None, cores(detect_launch()))


class _Choice:
    """The choice of a recipe's open fields, which all processes make together."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        opened = [name for name in TIMED if getattr(recipe, name) == AUTO]
        several = [name for name in opened if _has_choice(recipe, name, device)]
        # Machines of a job may differ in cores.
        self.open_fields = broadcast_from_rank0(comm, lambda: several)
        """The fields that are auto and have several sensible values, in the order of TIMED."""
        self.default = replace(recipe, **{name: DEFAULTS[name] for name in opened})
        self.comm, self.device = comm, device
        self.hosted = len(hosted_workers(self.default, comm.world_size, comm.rank))
        if recipe.noise_scale and comm.world_size == 1:
            # For a noise scale a step needs at least two micro-batches.
            self.hosted = max(self.hosted // 2, 1)
        self.record = ChoiceRecord(recipe, self.open_fields, comm, device)

    def defaults_line(self) -> str:
        """Format the log line of a run that is too short for a comparison."""
        values = {name: DEFAULTS[name] for name in self.open_fields}
        return f"{_overrides(values)}, the defaults, as the run leaves no time to compare others"

    def time(self, seconds: float, *, compiles: bool = False) -> tuple[Recipe, list[str]]:
        """Time the candidates for the open fields, and record the fastest values."""
        begin = time.perf_counter()
        if self.comm.rank == 0:
            most = f" for at most {seconds:g} s ({BUSY * seconds:g} on a busy machine)"
            limit = most if math.isfinite(seconds) else ""
            fields = ", ".join(self.open_fields)
            messages.show(f"timing steps{limit}, to choose {fields}; hardware=none times none")
        with closing(StepTimer(self.default, self.hosted, self.device, seconds)) as timer:
            planned = max(self.comm.gather_objects(timer.probe(self.comm.world_size)))
            if math.isfinite(seconds):
                timer.seconds = min(seconds, MAX_SHARE * planned)
            if timer.seconds < MIN_SECONDS:
                broadcast_from_rank0(self.comm, self.record.write_short)
                return self.default, [self.defaults_line()]
            best, tried = self._descend(timer, compiles=compiles)
        lacked_time = any(self.comm.gather_objects(timer.lacked_time))  # as a longer run may not
        if lacked_time and not broadcast_from_rank0(self.comm, lambda: tried):
            broadcast_from_rank0(self.comm, self.record.write_short)
            return self.default, [self.defaults_line()]
        values = {name: getattr(best, name) for name in self.open_fields}
        # Another job may have been faster: both keep its choice.
        found: dict[str, Any] = broadcast_from_rank0(
            self.comm, lambda: self.record.write(values, is_new=compiles)
        )
        ratios = ", ".join(tried) or "no other value is possible"
        line = (
            f"{_overrides(found)}, chosen in {time.perf_counter() - begin:.1f} s by the times of "
            f"steps: {ratios}"
        )
        return replace(self.default, **found), [line]

    def _descend(self, timer: "StepTimer", *, compiles: bool) -> tuple[Recipe, list[str]]:
        """Return the fastest setting, with the ratio of each value that was compared with others.

        Fields are decided one after the other. A setting that leaves the defaults in several fields
        is compared with them once more: ratios of noise may multiply.
        """
        best, accepted, tried = self.default, 0, list[str]()
        for name in self.open_fields:
            if name == "compile" and not compiles:
                continue
            for value in self._candidates(name, best):
                ratio = self._ratio(timer, best, replace(best, **{name: value}))
                if ratio != NOT_POSSIBLE:
                    of = as_override(getattr(best, name))
                    tried.append(f"{name}={as_override(value)} {ratio:.2f} of {of}'s")
                elif timer.not_compiled:
                    tried.append(f"compile=true fails ({timer.not_compiled})")
                if ratio < 1 - MIN_GAIN:
                    best, accepted = replace(best, **{name: value}), accepted + 1
                elif name == "workers_per_pass":
                    break  # larger ones would be slower, or do not fit
        if accepted > 1:
            ratio = self._ratio(timer, self.default, best)
            if ratio == NOT_POSSIBLE:
                return best, tried
            tried.append(f"together {ratio:.2f} of the defaults'")
            if ratio >= 1:
                best = self.default
        return best, tried

    def _candidates(self, name: str, best: Recipe) -> Sequence[Any]:
        """Return the values of a field of TIMED that are compared with its default, in order."""
        match name:
            case "workers_per_pass":
                return [2**power for power in range(1, best.workers.bit_length())]
            case "threads":
                most, default = _most_threads(), cpu_threads(best, self.hosted)
                values = sorted({1, (most + 1) // 2, most} - {default})
                return broadcast_from_rank0(self.comm, lambda: values)
        return [True]

    def _ratio(self, timer: "StepTimer", current: Recipe, candidate: Recipe) -> float:
        """Return the ratio of the process that gains least, since the others wait for it."""
        # All processes measure at the same time, since those of a machine share caches and memory.
        mine = timer.compare(current, candidate)
        return max(ratio for ratio in self.comm.gather_objects(mine) if ratio is not None)


def _has_choice(recipe: Recipe, name: str, device: torch.device) -> bool:
    """Return whether several values of a field of TIMED are sensible for a recipe."""
    workload = recipe.data.workload
    match name:
        case "channels_last":
            return workload == "images"
        case "workers_per_pass":
            return recipe.strategy.is_synchronous  # else each worker pushes its own gradients
        case "threads":
            return device.type == "cpu" and _most_threads() > 1
    return workload != "trees"  # the calls of a tree differ in every pass


class ChoiceRecord:
    """The file in the user's cache with the values that were fastest for a network on a machine.

    With it the same command makes the same choice again, and so the same bits. It also has the
    number of steps of a run that was too short for a comparison, until lsgd.autotune is called.
    """

    def __init__(
        self, recipe: Recipe, open_fields: Sequence[str], comm: Comm, device: torch.device
    ) -> None:
        launch = detect_launch()
        groups = (asdict(group) for group in (recipe.model.started_from(None), recipe.data))
        model, data = ({key: it[key] for key in it if key not in UNTIMED} for it in groups)
        self.timed = {
            **{name: getattr(recipe, name) for name in (*TIMED, *DECISIVE)},
            # Which of these fields have a choice depends on the strategy and the workload.
            "open": sorted(open_fields),
            "model": model,
            "data": data,
            "device": cpu() if device.type == "cpu" else device_name(device),
            "cores": cores(launch),
            "omp_num_threads": omp_num_threads(),
            "processes": [comm.world_size, launch.local_size],
            "versions": [lsgd.__version__, torch.__version__],
        }
        """All that the choice depends on; the fields that are chosen are auto."""
        content = json.dumps(self.timed, sort_keys=True, default=str)
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        self.timed = json.loads(content)
        self.steps = recipe.total_steps
        try:
            self.file: Path | None = cache_dir() / "autotune" / f"{name}.json"
        except UsageError:  # no home folder
            self.file = None

    def read(self) -> dict[str, Any]:
        """Return the recorded values by field; an empty dictionary if there are none."""
        values = self._content().get("fastest")
        if not isinstance(values, dict) or kept_values(values) != values:
            return {}
        return values if values.keys() == {*self.timed["open"]} else {}

    def short_steps(self) -> int:
        """Return the steps of the longest run that was too short for a comparison, or 0."""
        steps: Any = self._content().get("short")
        return int(steps) if _is_count(steps) else 0

    def write_short(self) -> None:
        """Record that a run of these steps is too short, so that it always keeps the defaults."""
        self._write({"short": self.steps, "fastest": self.read()})

    def write(self, values: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
        """Record the fastest values by field, unless another process has; return the recorded ones.

        With `is_new` they replace others, also the defaults of short runs. Where the cache cannot
        be written, they are returned.
        """
        if not is_new and (others := self.read()):
            return others
        self._write({"short": 0 if is_new else self.short_steps(), "fastest": values})
        return values

    def check_writable(self) -> None:
        """Raise UsageError if the record cannot be written, so that no later run would find it."""
        folder = cache_dir() / "autotune"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            why = "" if os.access(folder, os.W_OK) else "permission denied"
        except OSError as error:
            why = str(error.strerror)
        if why:
            raise UsageError(
                f"{folder} cannot be written ({why}), and no later run would find the choice; set "
                "XDG_CACHE_HOME to a folder that can be written"
            )

    def _content(self) -> dict[str, Any]:
        if self.file is None:
            return {}
        try:
            found = parse_json(read_bounded(self.file))
            return found if found["timed"] == self.timed else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def _write(self, values: dict[str, Any]) -> None:
        if self.file is None:
            return
        content = json.dumps(values | {"timed": self.timed}, indent=1)
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.file) as file:
                file.write(content.encode())


@dataclass
class StepTimer:
    """Timings of forward and backward passes of this process, with throwaway models."""

    default: Recipe
    hosted: int
    """The most workers of a step; 0 for a process that hosts none, and measures nothing."""
    device: torch.device
    seconds: float
    """The limit of the whole choice in seconds."""
    per_example: float = 0.0
    """The time of an example in the default setting, in seconds."""
    models: dict[tuple[Any, Any], tuple[Learner, Inputs]] = field(default_factory=dict)
    """The models and their batches, by memory format and whether they are compiled."""
    lacked_time: bool = False
    """Whether a comparison was left out because it would have exceeded the limit."""
    not_compiled: str = ""
    """Why torch could not compile the network; empty if it could, or was not asked to."""

    def __post_init__(self) -> None:
        """Start the clock of the limit."""
        self.begin, self.begin_on_wall = self._now(), time.perf_counter()

    def probe(self, world_size: int) -> float:
        """Time a step of one worker in the default setting; return the seconds of the whole run."""
        if not self.hosted:
            return 0.0
        examples = self._fewest_examples()
        for _ in range(2):  # the second time for as many as fit into a second
            self._warm_up(self.default, 1, examples)
            self.per_example = self._time(self.default, 1, examples, 1, self._now) / examples
            most = int(min(self.default.worker_batch, 0.5 / self.per_example))
            if most <= examples:
                break
            examples = most
        run = self.default.examples(self.default.total_steps)
        return self.per_example * run / world_size

    def compare(self, current: Recipe, candidate: Recipe) -> float | None:
        """Return the time of a step in one setting, in multiples of that in the current one.

        On a CPU the times are those of the processor, of all threads or, if the settings differ in
        their number, of the main thread: on an idle machine it is the time of the step, and other
        programs hardly change it. Returns None without hosted workers.
        """
        if not self.hosted:
            return None
        passes = [int(each.workers_per_pass) for each in (current, candidate)]
        workers = min(max(passes), self.hosted)
        unit = min(self.seconds, MAX_SECONDS) / UNITS_PER_RUN
        # Fewer examples outgrow no caches, and are another shape to compile.
        needs_all = (current.workers_per_pass, current.compile) != (
            candidate.workers_per_pass,
            candidate.compile,
        )
        examples = self.default.worker_batch
        if not needs_all:  # the fewest images whose kernels take the time
            affordable = int(4 * unit / (workers * self.per_example))
            examples = min(examples, max(affordable, self._fewest_examples()))
        step = workers * examples * self.per_example
        repeats = max(1, int(unit / step))
        expected = 2 * step + 2 * ROUNDS * repeats * step
        is_too_large = passes[1] > max(passes[0], self.hosted)
        if is_too_large or (needs_all and _may_exceed_memory(self.device)):
            return NOT_POSSIBLE
        if self._spent(expected) > self.seconds:
            self.lacked_time = True
            return NOT_POSSIBLE
        same = cpu_threads(current, self.hosted) == cpu_threads(candidate, self.hosted)
        is_processor_time = self.device.type == "cpu" and same
        clock = time.process_time if is_processor_time else self._now
        try:
            self._warm_up(current, workers, examples)
            _reset_memory(self.device)
            self._warm_up(candidate, workers, examples)
            if _exceeds_memory_share(self.device):
                return NOT_POSSIBLE
            ratios: list[float] = []
            # In turns, so that a machine that becomes busy slows both.
            while len(ratios) < ROUNDS:
                new, old = (
                    self._time(setting, workers, examples, repeats, clock)
                    for setting in (candidate, current)
                )
                ratios.append(new / old)
                if len(ratios) > 1 and self._spent() > self.seconds:
                    break
        except torch.OutOfMemoryError:
            return NOT_POSSIBLE
        except RuntimeError as error:  # such as that of a missing compiler
            if current.compile or not candidate.compile:
                raise
            self.not_compiled = first_line(error)
            return NOT_POSSIBLE
        return statistics.median(ratios)

    def close(self) -> None:
        """Release the memory of the throwaway models; a loader on a GPU could allocate none."""
        self.models.clear()
        gc.collect()
        if self.device.type != "cpu":
            empty_cache(self.device)

    def _now(self) -> float:
        return time.thread_time() if self.device.type == "cpu" else time.perf_counter()

    def _spent(self, expected: float = 0.0) -> float:
        """Return the seconds since the start plus those `expected`; on a busy machine half."""
        spent = max(self._now() - self.begin, 1e-9)
        busy = max(1.0, (time.perf_counter() - self.begin_on_wall) / spent / BUSY)
        return busy * (spent + expected)

    def _fewest_examples(self) -> int:
        """Return the fewest examples of a worker in a step: 2 images, which BN accepts."""
        all_of_them = self.default.worker_batch
        return min(2, all_of_them) if self.default.data.workload == "images" else all_of_them

    def _model(self, setting: Recipe) -> tuple[Learner, Inputs]:
        key = (setting.channels_last, setting.compile)
        if key not in self.models:
            learner = _throwaway_learner(setting, self.device)
            self.models[key] = learner, learner.workload.inputs()
        return self.models[key]

    def _warm_up(self, setting: Recipe, workers: int, examples: int) -> None:
        """Make a step that compiles and allocates."""
        self._time(setting, workers, examples, 1, self._now)

    def _time(
        self, setting: Recipe, workers: int, examples: int, repeats: int, clock: Callable[[], float]
    ) -> float:
        """Return the mean seconds of steps, of these workers with `examples` of each."""
        learner, inputs = self._model(setting)
        if self.device.type == "cpu":
            torch.set_num_threads(cpu_threads(setting, self.hosted))
        per_pass = min(int(setting.workers_per_pass), workers)
        micro_batches = [
            MicroBatch(
                0,
                np.arange(first * examples, (first + some) * examples),
                range(first, first + some),
            )
            for first in range(0, workers, per_pass)
            for some in (min(per_pass, workers - first),)
        ]
        task = StepTask(0, workers * examples, workers, micro_batches)
        return sum(_step_seconds(learner, task, inputs, clock) for _ in range(repeats)) / repeats


def _throwaway_learner(recipe: Recipe, device: torch.device) -> Learner:
    """Create a model and its training state to time on synthetic examples, in this process alone.

    With a tiny lr nothing can diverge; a micro-batch costs the same with any strategy.
    """
    timed = replace(
        recipe,
        schedule=Schedule(reference_lr=1e-9, milestones=[]),
        inputs=InputsSettings(loader="synthetic"),
        strategy=StrategySettings(),
    )
    return Learner(timed, SingleComm(), device)


def _step_seconds(
    learner: Learner, task: StepTask, inputs: Inputs, clock: Callable[[], float]
) -> float:
    """Measure the seconds of a training step from its batches to its gradients.

    Work that is done once per step, whatever its micro-batches, is left out: it would favour large
    ones.
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

    with reporting_phases(learner.strategy.phases(), listen):
        train_step(learner, task, batches())
    return end - begin


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


def autotune(recipe: Recipe) -> None:
    """Time all fields of a recipe that are auto, compile too, and record the fastest values.

    Raises UsageError if none of them is auto, and for a short run, which keeps the defaults.
    """
    if recipe.is_short:
        raise UsageError(
            f"{recipe.name} is a short run, which times no steps and keeps the defaults; add the "
            "overrides of a longer run, or train without autotune"
        )
    device = pick_device(recipe.device, numa=recipe.numa)
    with joined(recipe.comm, device) as comm:
        check_world_size(recipe, comm.world_size)
        choice = _Choice(recipe, comm, device)
        if not choice.open_fields:
            why = (
                f"{' and '.join(TIMED)} of {recipe.name} are all given; leave one out, or write"
                if recipe.strategy.is_synchronous
                else f"strategy={recipe.strategy.name} keeps the defaults of {', '.join(TIMED)} "
                "that nobody gives; write, here and for training,"
            )
            raise UsageError(f"{why} hardware=auto")
        broadcast_from_rank0(comm, choice.record.check_writable)
        _, lines = choice.time(math.inf, compiles=True)
        if comm.rank == 0:
            messages.show("\n".join([*lines, f"kept in {choice.record.file}"]))


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd autotune` command line and return its exit code."""
    about = (
        "Time steps of a recipe on this machine, compiled ones too.\n"
        "Later runs with hardware=auto, the default, take the fastest execution fields."
    )
    return run_command(
        lambda: autotune(recipe_parser.parse_recipe(argv, program="lsgd.autotune", about=about))
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
