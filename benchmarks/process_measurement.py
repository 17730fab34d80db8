"""Measurement of a training process from outside, by the lines that it prints for its steps.

A program only has to print a line for each completed step; its resource usage is read from /proc.
So the compared programs need no changes, and all are measured in the same way.
"""

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.usage import Usage, usage
from lsgd.errors import UsageError
from lsgd.job.children import OURS, describe_failure
from lsgd.job.ending import GRACE, end_tagged
from lsgd.job.system import tagged_pids

WARMUP_STEPS = 3
"""The first steps of a process, which are not measured, since they include one-time work."""


@dataclass(frozen=True)
class TrainingCommand:
    """A training command, and the lines that it prints for its steps."""

    command: Sequence[str]
    step: str
    """The regular expression of the beginning of lines for completed steps, and no others."""
    environment: Mapping[str, str] = field(default_factory=dict)


def measure_training(training: TrainingCommand, steps: int, *, limit: float) -> dict[str, float]:
    """Measure `steps` steps of a training process after its first WARMUP_STEPS ones.

    Measurements per step are between the lines of the last of the first steps and of the last step.
    CPU seconds with loaders, and those until the first step, are of the process and all its
    descendants; the others are of the process alone. Memory is in bytes: the peak of the process,
    and the same plus the current memory of the others, in which shared pages count by share. All
    processes have ended when this returns. Raises UsageError, with the last printed line, if the
    process ends early, or if it takes longer than `limit` seconds to the first step or for a
    further one.
    """
    begin = time.monotonic()
    with _started(training) as process:
        lines = _step_lines(process, re.compile(training.step), limit)
        next(lines)
        first_step, until_then = time.monotonic() - begin, _usage_of_each()
        for _ in range(WARMUP_STEPS - 1):
            next(lines)
        began, before, of_each = time.monotonic(), usage(process.pid), _usage_of_each()
        for _ in range(steps):
            next(lines)
        ended, after, then = time.monotonic(), usage(process.pid), _usage_of_each()
        peak = _memory(process.pid, "status", "VmHWM")
        others = sum(_memory(pid, "smaps_rollup", "Pss") for pid in {*then} - {process.pid})
    with_loaders = [_cpu_seconds(now) - _cpu_seconds(of_each.get(pid)) for pid, now in then.items()]
    return {
        "seconds_per_step": (ended - began) / steps,
        "cpu_seconds_per_step": (after.cpu_seconds - before.cpu_seconds) / steps,
        "system_seconds_per_step": (after.system_seconds - before.system_seconds) / steps,
        "cpu_seconds_with_loaders": sum(with_loaders) / steps,
        "page_faults_per_step": (after.page_faults - before.page_faults) / steps,
        "first_step_seconds": first_step,
        "first_step_cpu_seconds": sum(map(_cpu_seconds, until_then.values())),
        "peak_bytes": peak,
        "bytes_with_loaders": peak + others,
    }


@contextmanager
def _started(training: TrainingCommand) -> Iterator[subprocess.Popen[bytes]]:
    """Start the training process with its output in a pipe, and end all its processes on exit."""
    # lsgd.job.children keeps the output until the end, and here it is read as it comes.
    with subprocess.Popen(
        training.command,
        env={**os.environ, **training.environment, **dict([OURS]), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that Ctrl-C reaches the caller alone
    ) as process:
        try:
            yield process
        finally:
            end_tagged(OURS, GRACE)


def _step_lines(
    process: subprocess.Popen[bytes], step: re.Pattern[str], limit: float
) -> Iterator[str]:
    """Yield the lines for completed steps as they are printed.

    Raises UsageError as `measure_training` does.
    """
    assert process.stdout
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    done, rest, last, deadline = 0, b"", "", time.monotonic() + limit
    while poll.poll(1000 * max(0, deadline - time.monotonic())):
        content = os.read(process.stdout.fileno(), 2**16)
        *lines, rest = (rest + content).split(b"\n") if content else (rest, b"")
        for line in (line.decode(errors="replace").strip() for line in lines):
            last = line or last
            if step.match(line):
                done, deadline = done + 1, time.monotonic() + limit
                yield line
        if not content:
            why = describe_failure(process.wait(), last, limit)
            raise UsageError(f"it ended after {done} steps: {why}")
    raise UsageError(
        f"it took longer than {limit:g} s for step {done + 1}, and said last: {last[:160]}"
    )


def _usage_of_each() -> dict[int, Usage]:
    """Return the usage of the running training process and its descendants, by pid."""
    used = {}
    for pid in tagged_pids(OURS):
        with suppress(OSError):  # it has ended meanwhile
            used[pid] = usage(pid)
    return used


def _cpu_seconds(used: Usage | None) -> float:
    return used.cpu_seconds if used else 0


def _memory(pid: int, file: str, entry: str) -> int:
    """Return the bytes of an entry of /proc/PID/FILE, such as `VmHWM:  1024 kB`.

    Returns 0 if the process has ended.
    """
    with suppress(OSError):
        found = re.search(rf"^{entry}:\s*(\d+) kB$", Path(f"/proc/{pid}/{file}").read_text(), re.M)
        return 1024 * int(found[1]) if found else 0
    return 0
