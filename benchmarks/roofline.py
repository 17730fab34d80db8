"""Roofline of a training step on a CPU, by operator: `python -m benchmarks.roofline`."""

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.command import as_command
from benchmarks.operator_groups import operator_group
from lsgd.bench import results
from lsgd.bench.setting import Result, check_not_launched, recipe_facts, recipe_lines
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.command import integer_from
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.models import DTYPES
from lsgd.profile.traffic import OperatorCall, OperatorTraffic
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.tables import markdown_table

ABOUT = """\
Where does the time of a step on a CPU go, and how much less could it be? Each operator of lsgd's
own step of one micro-batch is measured in processor seconds, and compared with its roofline: the
bytes that it moves over the memory bandwidth, or its floating-point operations over the peak
arithmetic, whichever takes longer; groups of operators, such as BN, are summed. Both rates are
measured first, by a copy and by convolutions. Small tensors stay in caches, so that their operators
can be faster than their roofline. Images are made up, and the model is not compiled.

  python -m benchmarks.roofline recipe=bs256
  … precision=bfloat16 channels_last=true      another number format and memory layout
"""

PROBE_SECONDS = 0.5
"""The processor seconds for which each rate of the machine is measured."""
COPIED = 2**27
"""The elements of the copied tensor, half a GiB, which no cache holds."""
LEAST_SHARE = 0.01
"""The share of the step's time below which operators or groups are summed in one row."""


@dataclass(frozen=True)
class Rates:
    """The rates of a machine per processor second, as measured."""

    bandwidth: float
    """The bytes that are read or written."""
    peak: float
    """The floating-point operations of a convolution in the step's number format."""

    def least_seconds(self, call: OperatorCall) -> float:
        """Return the processor seconds that an operator call takes at these rates."""
        return max(call.bytes_moved / self.bandwidth, call.flops / self.peak)


class TimedOperators(OperatorTraffic):
    """A recorder of torch operator calls that also measures the processor seconds of each."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.groups: list[str] = []
        self._duration = 0.0

    def clear(self) -> None:
        """Discard the operator calls and times recorded so far."""
        super().clear()
        self.seconds, self.groups = [], []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch operator, and record it and its time."""
        begin = time.process_time()
        result = function(*args, **(kwargs or {}))
        self._duration = time.process_time() - begin
        self.record_operator(function, args, kwargs or {}, result)
        return result

    def record_operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator call with its bytes and the time measured last."""
        before = len(self.calls)
        super().record_operator(function, args, kwargs, result)
        if len(self.calls) > before:  # views and allocations are left out
            self.seconds.append(self._duration)
            self.groups.append(operator_group(self.calls[-1].name, args, result))

    def names(self) -> dict[str, list[str]]:
        """Return the name of the operator and of the group of each recorded call."""
        return {"operator": [call.name for call in self.calls], "group": self.groups}


def roofline(argv: Sequence[str]) -> None:
    """Measure the operators of the recipe's step, print the table and save it in --out."""
    line = RecipeParser(program="benchmarks.roofline", about=ABOUT)
    line.usage = f"{line.usage} [--steps N] [--out FOLDER]"
    line.add_argument(
        "--steps",
        type=integer_from(1),
        default=3,
        metavar="N",
        help="measure N steps after one that warms up; the fastest of each operator counts (3)",
    )
    results.add_out(line, "roofline")
    recipe, options = line.parse(argv)
    check_not_launched("the steps of one are measured")
    device = pick_device(recipe.device)
    if device.type != "cpu":
        raise UsageError(
            f"device={device.type}, and processor seconds are those of a CPU; write device=cpu, or "
            "use python -m lsgd.plan bound for a GPU"
        )
    if recipe.compile:
        raise UsageError(
            "compile=true fuses the operators that are measured here; leave it out, or use "
            "benchmarks.step"
        )
    with results.open_record("roofline", line.prog, argv, options.out) as record:
        result = recipe_facts(recipe, device)
        result |= measure(recipe, device, options.steps)
        record.write_report(result, report(result))


def measure(recipe: Recipe, device: torch.device, count: int) -> Result:
    """Measure the machine's rates and the operators of `count` steps of one micro-batch."""
    # With a tiny lr nothing can diverge.
    slow = replace(recipe, schedule=replace(recipe.schedule, reference_lr=1e-9))
    learner = Learner(slow, SingleComm(), device)  # sets the number of threads
    lower = recipe.precision == "bfloat16"
    dtype = torch.bfloat16 if lower else DTYPES[recipe.precision]
    rates = Rates(measure_bandwidth(), measure_peak(dtype))
    workers = min(recipe.micro_batch_workers, recipe.workers)
    examples = workers * recipe.worker_batch
    only = MicroBatch(0, np.arange(examples), range(workers))
    task = StepTask(0, examples, workers, [only])
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    steps: list[float] = []
    fastest: dict[str, dict[str, float]] = {"operator": {}, "group": {}}
    timed = TimedOperators()
    for number in range(count + 1):
        batches = iter(list(inputs.train([only])))
        timed.clear()
        begin = time.process_time()
        train_step(learner, task, batches)
        whole = time.process_time() - begin
        # The recorder's own time would count as the step's, so every step is made twice.
        batches = iter(list(inputs.train([only])))
        with timed:
            train_step(learner, task, batches)
        if number:
            steps.append(whole)
            for kind, names in timed.names().items():
                known = fastest[kind]
                for name, seconds in sum_seconds(names, timed.seconds).items():
                    known[name] = min(seconds, known.get(name, seconds))
    rows = {
        kind: roofline_rows(kind, names, timed.calls, fastest[kind], rates)
        for kind, names in timed.names().items()
    }
    return {
        "bandwidth": rates.bandwidth,
        "peak": rates.peak,
        "step_seconds": min(steps),
        "images_per_step": examples,
        "steps": count,
        "operators": rows["operator"],
        "groups": rows["group"],
    }


def measure_bandwidth() -> float:
    """Measure the bytes that copying a large tensor reads and writes per processor second."""
    source = torch.ones(COPIED)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source))


def measure_peak(dtype: torch.dtype) -> float:
    """Measure the operations per processor second of a 3 x 3 convolution of many channels."""
    images = torch.ones(16, 256, 28, 28, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(256, 256, 3, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        seconds = _fastest(lambda: F.conv2d(images, weight, padding=1))
    return 2 * 16 * 28 * 28 * 256 * 256 * 9 / seconds


def _fastest(action: Any) -> float:
    """Return the least processor seconds of an action that is repeated for PROBE_SECONDS."""
    action()  # allocates
    times: list[float] = []
    while sum(times) < PROBE_SECONDS:
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def sum_seconds(names: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    """Return the processor seconds of a step's calls, summed by name."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, each in zip(names, seconds, strict=True):
        found[name] += each
    return dict(found)


def roofline_rows(
    kind: str,
    names: Sequence[str],
    calls: Sequence[OperatorCall],
    seconds: dict[str, float],
    rates: Rates,
) -> list[Result]:
    """Return the measurements and the roofline of the calls of each name, the slowest name first.

    `kind` is the key of the name in a row, operator or group; `names` has that of each call.
    """
    rows = []
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        own = [call for call, its in zip(calls, names, strict=True) if its == name]
        rows.append(
            {
                kind: name,
                "calls": len(own),
                "seconds": seconds[name],
                "bytes": sum(call.bytes_moved for call in own),
                "flops": sum(call.flops for call in own),
                "least_seconds": sum(map(rates.least_seconds, own)),
            }
        )
    return rows


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    return "\n".join(
        [
            *recipe_lines(result),
            f"a step of one micro-batch of {result['images_per_step']} images: "
            f"{result['step_seconds']:.3f} CPU s, the fastest of {result['steps']}, and its "
            "operators measured one by one",
            f"this machine: {result['bandwidth'] / 1e9:.1f} GB and {result['peak'] / 1e9:,.0f} "
            "GFLOP per CPU second",
            "",
            _table("group", result["groups"]),
            "",
            _table("operator", result["operators"]),
        ]
    )


def _table(kind: str, rows: Sequence[Result]) -> str:
    total = _summed(kind, f"all {kind}s", rows)
    small = [row for row in rows if row["seconds"] < LEAST_SHARE * total["seconds"]]
    shown = [row for row in rows if row not in small]
    shown += [_summed(kind, f"{len(small)} others", small)] if small else []
    head = [kind, "calls", "CPU s", "share", "GB", "GFLOP", "roofline, CPU s", "times it"]
    table = [
        [
            row[kind],
            str(row["calls"]),
            f"{row['seconds']:.4f}",
            f"{100 * row['seconds'] / total['seconds']:.0f} %",
            f"{row['bytes'] / 1e9:.3f}",
            f"{row['flops'] / 1e9:.2f}",
            f"{row['least_seconds']:.4f}",
            f"{row['seconds'] / row['least_seconds']:.1f}" if row["least_seconds"] else "",
        ]
        for row in [*shown, total]
    ]
    return markdown_table(head, table)


def _summed(kind: str, name: str, rows: Sequence[Result]) -> Result:
    keys = ("calls", "seconds", "bytes", "flops", "least_seconds")
    return {kind: name} | {key: sum(row[key] for row in rows) for key in keys}


main = as_command(roofline)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
