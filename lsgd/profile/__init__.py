"""The profiler of a run (profile=true): the time of each phase, the straggler, and a trace.

After the first WARMUP steps of a process, the phases of MEASURED steps are timed, on a GPU by its
own events, so that no step waits for it. Then torch's profiler traces TRACED steps, and its
overhead is not in the times. The computation does not change.
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

from lsgd.errors import DISK_FULL_ERRNOS
from lsgd.files import atomic_write
from lsgd.inputs import Inputs
from lsgd.job.device import new_event, synchronize
from lsgd.learner import Learner
from lsgd.profile.phases import reporting_batches, reporting_phases
from lsgd.profile.stragglers import (
    BETWEEN_STEPS,
    PhaseTimes,
    ProcessTiming,
    describe_straggler,
    phase_table,
    process_table,
)
from lsgd.run.metrics import Log

WARMUP = 5
MEASURED = 20
TRACED = 2
ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
"""The types of devices whose kernels torch's profiler records."""

README = """\
# Where the time of a step goes

{sentence}.

Steps {first} to {last}; of each process the mean over these steps, here over all processes:

{split}

{by_process}

`communication` is the time of the gradients' all-reduce beyond the backward pass that it overlaps
with, including the wait for slower processes. `{between}`: metric rows, checkpoints, evaluation.
`trace-RANK.json.gz`, of each process, is for https://ui.perfetto.dev or chrome://tracing.
"""


@contextmanager
def profiling(learner: Learner, inputs: Inputs, run: Path, log: Log) -> Iterator[None]:
    """Time and trace some training steps into the run folder within this context if profile=true.

    All processes must enter and exit the context; one that exits by an exception does not wait for
    the others.
    """
    if not learner.recipe.profile:
        yield
        return
    # Process 0's clock names the folder, so that a resumed run gets a new one.
    folder = run / "profile" / learner.comm.broadcast_object(f"{datetime.now():%Y%m%d-%H%M%S}")
    profile = StepProfile(learner, folder, log)
    try:
        phases = reporting_phases(learner.strategy.phases(), profile)
        with phases, reporting_batches(inputs, profile.of_batch):
            yield
        profile.finish()
    finally:
        profile.trace.close()


class StepProfile:
    """A profiler of a run's steps, called as each phase begins, that times, traces and reports."""

    def __init__(self, learner: Learner, folder: Path, log: Log) -> None:
        self.learner, self.folder, self.log = learner, folder, log
        self.trace = Trace(folder / f"trace-{learner.comm.rank}.json.gz", learner.device, log)
        on_host = learner.device.type == "cpu"
        self.now: Callable[[], Any] = time.perf_counter if on_host else self._event
        self.seconds: Callable[[Any, Any], float] = lambda begin, end: (
            end - begin if on_host else begin.elapsed_time(end) / 1000
        )
        self.steps_ended = 0
        self.begun: list[tuple[str, Any]] = []
        """The phases of the measured steps, each with its begin time."""
        self.is_between_steps = True
        self.reported = False
        log.print_text(
            f"profile=true: after {WARMUP} steps {MEASURED} are timed and then {TRACED} traced, "
            f"into {folder}"
        )

    def __call__(self, phase: str) -> None:
        """Record the start of a phase of a training step, which also ends the previous phase."""
        self.is_between_steps = phase == BETWEEN_STEPS
        self.steps_ended += phase == BETWEEN_STEPS
        if self.steps_ended >= WARMUP and not self.reported:
            self.begun.append((phase, self.now()))
        self.trace.label(phase)
        if phase == BETWEEN_STEPS:
            self._end_step()

    def of_batch(self, phase: str) -> None:
        """Record the start of a phase that a batch begins, if it is a batch of a training step.

        Between steps, an evaluation may measure BN's statistics on training images.
        """
        if not self.is_between_steps:
            self(phase)

    def _end_step(self) -> None:
        if self.steps_ended == WARMUP + MEASURED:
            self._report()
            self.trace.start()
        elif self.reported:
            self.trace.step()

    def finish(self) -> None:
        """Report the phase times measured so far if the run ends early; warn if there are none."""
        if not self.reported and self.steps_ended > WARMUP:
            self._report()
        elif not self.reported:
            self.log.warn(
                self.learner.next_step,
                f"profile=true times steps from the {WARMUP + 1}th on, and there were only "
                f"{self.steps_ended}",
            )

    def _report(self) -> None:
        """Gather the phase times of all ranks; log them, and write the report on rank 0."""
        self.reported = True
        learner = self.learner
        hosted = len(learner.strategy.hosted)
        mine = ProcessTiming(learner.comm.rank, platform.node(), hosted, self._steps())
        timings = learner.comm.gather_objects(mine)
        sentence = describe_straggler(timings)
        last = learner.next_step
        self.log.print_text(
            f"steps {last - len(mine.steps) + 1} to {last}: {sentence}\n{phase_table(timings)}"
        )
        if learner.comm.rank == 0:
            text = README.format(
                sentence=sentence[0].upper() + sentence[1:],
                first=last - len(mine.steps) + 1,
                last=last,
                split=phase_table(timings),
                by_process=process_table(timings),
                between=BETWEEN_STEPS,
            )
            with (
                _unless_full(self.log, last, self.folder),
                atomic_write(self.folder / "README.md") as file,
            ):
                file.write(text.encode())

    def _event(self) -> Any:
        event = new_event(self.learner.device, timed=True)
        event.record()
        return event

    def _steps(self) -> list[PhaseTimes]:
        synchronize(self.learner.device)
        steps: list[PhaseTimes] = []
        for (phase, begin), (_, end) in pairwise(self.begun):
            if phase == BETWEEN_STEPS:
                steps.append({})
            steps[-1][phase] = steps[-1].get(phase, 0.0) + self.seconds(begin, end)
        return steps


class Trace:
    """A trace of some training steps by torch.profiler, labelled with the phases of each step."""

    def __init__(self, path: Path, device: torch.device, log: Log) -> None:
        self.path, self.log = path, log
        gpu = [ACTIVITIES[device.type]] if device.type in ACTIVITIES else []
        self.profiler: torch.profiler.profile | None = None
        self.activities = [ProfilerActivity.CPU, *gpu]
        self.phase: record_function | None = None

    def start(self) -> None:
        """Start torch.profiler, which warms up in the next training step and then traces."""
        self.profiler = torch.profiler.profile(
            activities=self.activities,
            schedule=schedule(wait=0, warmup=1, active=TRACED, repeat=1),
            on_trace_ready=self._write,
            acc_events=True,  # torch 2.11 warns without it, even of a schedule with one cycle
        )
        self.profiler.start()

    def label(self, phase: str) -> None:
        """Label the operations that follow in the trace with the name of a phase of the step."""
        self._end_phase()
        if self.profiler:
            self.phase = record_function(phase)
            self.phase.__enter__()

    def step(self) -> None:
        """Mark the end of a training step in the trace; write the trace after the last one."""
        if self.profiler:
            self._end_phase()
            self.profiler.step()
            if self.profiler.step_num > TRACED:
                self.close()

    def close(self) -> None:
        """Stop torch.profiler if it runs, and write its trace file."""
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
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        log.warn(step, f"no space left for the profile in {folder}; training continues")
