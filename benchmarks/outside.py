"""A training as a process of its own, measured from outside by the lines that it prints.

Nothing is asked of it but a line for each step that is done; what it has used by then is read in
/proc. So the programs that are compared need not know of it, and all are measured alike.
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

from lsgd.bench.usage import Usage, usage
from lsgd.errors import Refused
from lsgd.job.children import GRACE, OURS, failure
from lsgd.job.ending import end, tagged

SETTLED = 3
"""The first steps of a process, which do not count: what is made once is made in them."""


@dataclass(frozen=True)
class Training:
    """A command that trains."""

    command: Sequence[str]
    step: str
    """The regular expression of how a line begins that says a step is done, and no other line."""
    environment: Mapping[str, str] = field(default_factory=dict)


def watch(training: Training, steps: int, *, limit: float) -> dict[str, float]:
    """The measurements of a process that makes so many steps after the first ones, by their names.

    What is per step is between the line of the last of the first ones and that of the last step;
    CPU seconds with loaders, and those until the first step, are of the process and of all that it
    has started, the rest is of the process alone. Memory is in bytes: the most until then, and the
    same with what the others have at the end, of pages that are shared a share. Afterwards all have
    ended.
    Raises Refused, with the last line that was printed, if the process ends before, or if it takes
    longer than `limit` seconds to the first step or for a further one.
    """
    begin = time.monotonic()
    with _started(training) as process:
        lines = _step_lines(process, re.compile(training.step), limit)
        next(lines)
        first_step, until_then = time.monotonic() - begin, _usage_of_each()
        for _ in range(SETTLED - 1):
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
def _started(training: Training) -> Iterator[subprocess.Popen[bytes]]:
    """The process, running, with all that it prints in a pipe; afterwards all of it has ended."""
    # Not lsgd.job.children, which keeps the output until the end.
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
            end(OURS, GRACE)


def _step_lines(
    process: subprocess.Popen[bytes], step: re.Pattern[str], limit: float
) -> Iterator[str]:
    """The lines that say a step is done, each as it comes; raises Refused as watch does."""
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
            why = failure(process.wait(), last, limit)
            raise Refused(f"it ended after {done} steps: {why}")
    raise Refused(
        f"it took longer than {limit:g} s for step {done + 1}, and said last: {last[:160]}"
    )


def _usage_of_each() -> dict[int, Usage]:
    """What each process has used that the running one is or has started, by its pid."""
    used = {}
    for pid in tagged(OURS):
        with suppress(OSError):  # it has ended meanwhile
            used[pid] = usage(pid)
    return used


def _cpu_seconds(used: Usage | None) -> float:
    return used.cpu_seconds if used else 0


def _memory(pid: int, file: str, entry: str) -> int:
    """Bytes that an entry of /proc/PID/FILE says, such as `VmHWM:  1024 kB`; 0 of who has ended."""
    with suppress(OSError):
        found = re.search(rf"^{entry}:\s*(\d+) kB$", Path(f"/proc/{pid}/{file}").read_text(), re.M)
        return 1024 * int(found[1]) if found else 0
    return 0
