"""profile=true: where the time of a step goes, who makes the others wait, and a trace.

After the first WARMUP steps that a process makes, the phases of MEASURED steps are timed: on a GPU
by its own events, so that no step waits for it. Then torch's profiler traces TRACED steps; its own
cost is not in the times. Nothing of what is computed changes.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from lsgd.errors import FULL
from lsgd.files import whole
from lsgd.inputs import Inputs
from lsgd.learner import Learner
from lsgd.profile.phases import reporting_batches, reporting_phases
from lsgd.profile.stragglers import BETWEEN, PhaseTimes, Timing, by_process, slowest, split
from lsgd.run.metrics import Log

WARMUP = 5
MEASURED = 20
TRACED = 2

README = """\
# Where the time of a step goes

{sentence}.

Steps {first} to {last}; of each process the mean over these steps, here over all processes:

{split}

{by_process}

`communication` is what the sum of the gradients takes beyond the backward pass that it overlaps
with, waiting for slower processes included. `{between}`: rows of metrics, checkpoints, evaluation.
`trace-RANK.json.gz`, of each process, is for https://ui.perfetto.dev or chrome://tracing.
"""


@contextmanager
def profiling(learner: Learner, inputs: Inputs, run: Path, log: Log) -> Iterator[None]:
    """Time and trace some steps of the learner, if its recipe says so, into the folder of the run.

    All processes enter and leave it alike; one that leaves by an exception does not wait for the
    others.
    """
    if not learner.recipe.profile:
        yield
        return
    # By the clock of process 0: a resumed run gets a folder of its own.
    folder = run / "profile" / learner.comm.broadcast_object(f"{datetime.now():%Y%m%d-%H%M%S}")
    profile = Profile(learner, folder, log)
    try:
        phases = reporting_phases(learner.strategy.timed(), profile)
        with phases, reporting_batches(inputs, profile):
            yield
        profile.finish()
    finally:
        profile.trace.close()


class Profile:
    """The listener of lsgd.profile.phases, which is called with each phase as it begins."""

    def __init__(self, learner: Learner, folder: Path, log: Log) -> None:
        self.learner, self.folder, self.log = learner, folder, log
        self.trace = Trace(folder / f"trace-{learner.comm.rank}.json.gz", learner.device, log)
        on_gpu = learner.device.type == "cuda"
        self.now: Callable[[], Any] = _event if on_gpu else time.perf_counter
        self.seconds: Callable[[Any, Any], float] = _between_events if on_gpu else _between_times
        self.steps_ended = 0
        self.begun: list[tuple[str, Any]] = []
        """The phases of the measured steps, each with when it began."""
        self.reported = False
        log.say(
            f"profile=true: after {WARMUP} steps {MEASURED} are timed and then {TRACED} traced, "
            f"into {folder}"
        )

    def __call__(self, phase: str) -> None:
        """The phase begins, and with it the one before ends."""
        self.steps_ended += phase == BETWEEN
        if self.steps_ended >= WARMUP and not self.reported:
            self.begun.append((phase, self.now()))
        self.trace.label(phase)
        if phase == BETWEEN:
            self._end_step()

    def _end_step(self) -> None:
        if self.steps_ended == WARMUP + MEASURED:
            self._report()
            self.trace.start()
        elif self.reported:
            self.trace.step()

    def finish(self) -> None:
        """Report the steps measured so far, if the run ends before all are."""
        if not self.reported and self.steps_ended > WARMUP:
            self._report()
        elif not self.reported:
            self.log.warn(
                self.learner.next_step,
                f"profile=true times no step before the {WARMUP + 1}th, and there were only "
                f"{self.steps_ended}",
            )

    def _report(self) -> None:
        """Gather what all processes have measured; process 0 says and writes it."""
        self.reported = True
        learner = self.learner
        hosted = len(learner.strategy.hosted)
        mine = Timing(learner.comm.rank, platform.node(), hosted, self._steps())
        timings = learner.comm.gather_objects(mine)
        sentence = slowest(timings)
        last = learner.next_step
        self.log.say(f"steps {last - len(mine.steps) + 1} to {last}: {sentence}\n{split(timings)}")
        if learner.comm.rank == 0:
            text = README.format(
                sentence=sentence[0].upper() + sentence[1:],
                first=last - len(mine.steps) + 1,
                last=last,
                split=split(timings),
                by_process=by_process(timings),
                between=BETWEEN,
            )
            with (
                _unless_full(self.log, last, self.folder),
                whole(self.folder / "README.md") as file,
            ):
                file.write(text.encode())

    def _steps(self) -> list[PhaseTimes]:
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize(self.learner.device)
        steps: list[PhaseTimes] = []
        for (phase, begin), (_, end) in pairwise(self.begun):
            if phase == BETWEEN:
                steps.append({})
            steps[-1][phase] = steps[-1].get(phase, 0.0) + self.seconds(begin, end)
        return steps


class Trace:
    """torch's profiler over some steps, with the phases named."""

    def __init__(self, path: Path, device: torch.device, log: Log) -> None:
        self.path, self.log = path, log
        gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self.profiler: torch.profiler.profile | None = None
        self.activities = [ProfilerActivity.CPU, *gpu]
        self.phase: record_function | None = None

    def start(self) -> None:
        """The next step is the profiler's own warmup, and those after it are traced."""
        self.profiler = torch.profiler.profile(
            activities=self.activities,
            schedule=schedule(wait=0, warmup=1, active=TRACED, repeat=1),
            on_trace_ready=self._write,
            acc_events=True,  # torch 2.11 warns without it, even of a schedule with one cycle
        )
        self.profiler.start()

    def label(self, phase: str) -> None:
        """Name what follows in the trace."""
        self._end_phase()
        if self.profiler:
            self.phase = record_function(phase)
            self.phase.__enter__()

    def step(self) -> None:
        """End the phase and, after the last traced step, the trace."""
        if self.profiler:
            self._end_phase()
            self.profiler.step()
            if self.profiler.step_num > TRACED:
                self.close()

    def close(self) -> None:
        """Write what has been traced."""
        self._end_phase()
        if self.profiler:
            self.profiler.stop()
            self.profiler = None

    def _end_phase(self) -> None:
        if self.phase:
            self.phase.__exit__(None, None, None)
            self.phase = None

    def _write(self, traced: torch.profiler.profile) -> None:
        # The name ends in .gz as well, since that makes the profiler compress the trace.
        partial = self.path.with_name(f".{self.path.name}")
        with _unless_full(self.log, traced.step_num, self.path.parent):
            traced.export_chrome_trace(str(partial))
            os.replace(partial, self.path)


@contextmanager
def _unless_full(log: Log, step: int, folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.warn(step, f"no space left for the profile in {folder}; training goes on")


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_events(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(begin.elapsed_time(end)) / 1000


def _between_times(begin: float, end: float) -> float:
    return end - begin
