"""The calls and the memory of one training step, counted: the same numbers on every run.

    python -m benchmarks.calls            # the numbers, and how they differ from the golden file
    python -m benchmarks.calls --write    # write the golden file anew
    python -m benchmarks.calls --json     # the numbers alone

Timings here are certain to 3 to 5 %; an operator too many in every layer is less than that, and a
count shows it. benchmarks/README.md says what is counted and how to read a difference.
"""

import gc
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.job.command import Parser, run_alone
from lsgd.learner import Learner
from lsgd.step import train_step

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden/calls.json"
WRITE = "python -m benchmarks.calls --write"

# Small batches of small images: what is counted does not depend on how long an operator takes.
ALL = ("inputs=synthetic", "device=cpu", "worker_batch=4", "data.image_size=8")
SMALL = (*ALL, "+recipe=digits", "workers=8")
# Gradients in several buckets, as those of a large model are.
RESNET20 = (*ALL, "+recipe=fashion_resnet20", "workers=4", "comm.bucket_mb=0.25")
CASES = {
    "small_resnet, 8 passes of 1 worker": (*SMALL, "workers_per_pass=1"),
    "small_resnet, 1 pass of 8 workers": (*SMALL, "workers_per_pass=8"),
    "resnet20, 4 passes of 1 worker": (*RESNET20, "workers_per_pass=1"),
    "resnet20, 1 pass of 4 workers": (*RESNET20, "workers_per_pass=4"),
}
"""The words of the recipe whose step is counted, by name."""

WARMUP_STEPS = 3
"""Steps before the counted ones, which make the momentum and fill caches of Python and torch."""

Counts = dict[str, dict[str, int]]
"""Counts by kind, then by operator, module or name; `count` lists the kinds."""


class CountedSums(SingleComm):
    """A single process that records the sums it starts."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        """The name and the bytes of each sum."""

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Record the sum, and start it as SingleComm does."""
        self.started.append((name, tensor.nbytes))
        return super().start_sum_(tensor, name)


def count(words: Sequence[str]) -> Counts:
    """The counts of a step of this recipe, once warm.

    ATen calls by operator, those within others too; Python calls and calls of C functions from
    Python, by the module that is called or calls; allocations and their bytes; sums over processes
    and their bytes, by name. The images are ready in a list, so that no loader is counted.
    """
    recipe = config.load_recipe(list(words))
    comm, device = CountedSums(), torch.device("cpu")
    with alike_everywhere():
        learner = Learner(recipe, comm, device)
        tasks = list(learner.strategy.tasks(0, list(range(WARMUP_STEPS + 2))))
        inputs = learner.workload.inputs()
        steps = [(task, iter(list(inputs.train(task.passes)))) for task in tasks][::-1]

        def step() -> None:
            task, batches = steps.pop()
            train_step(learner, task, batches)

        for _ in range(WARMUP_STEPS):
            step()
        with collected():
            python = python_calls(step)
            comm.started.clear()
            # Another step, since either way of counting makes calls of its own.
            torch_ = torch_calls(step)
    sums, summed = Counter[str](), Counter[str]()
    for name, size in comm.started:
        sums[name] += 1
        summed[name] += size
    return python | torch_ | {"sums": dict(sums), "bytes summed": dict(summed)}


def python_calls(step: Callable[[], None]) -> Counts:
    """The calls of Python functions and, from Python, of C functions that a step makes.

    A generator is called once for each value. What this module does is left out.
    """
    called: dict[str, Counter[str]] = {"call": Counter(), "c_call": Counter()}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event in called and frame.f_globals is not globals():
            called[event][frame.f_globals.get("__name__", "?")] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return {"Python calls": dict(called["call"]), "C calls": dict(called["c_call"])}


def torch_calls(step: Callable[[], None]) -> Counts:
    """The ATen calls that a step makes, and what it allocates for tensors.

    torch's profiler counts them, since it only observes. A TorchDispatchMode would change what it
    counts: with one, autograd adds up the gradients of a branch out of place.
    """
    # Or Kineto says on stderr that it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profiler.profile(use_cpu=True, profile_memory=True) as profile:
        step()
    assert profile.kineto_results is not None
    events = profile.kineto_results.events()
    names = Counter(event.name() for event in events)
    # What is freed counts negative.
    sizes = [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]
    return {
        "ATen calls": {name: n for name, n in names.items() if name.startswith("aten::")},
        "allocations": {"cpu": len(sizes)},
        "bytes allocated": {"cpu": sum(sizes)},
    }


@contextmanager
def alike_everywhere() -> Iterator[None]:
    """Compute in here with one thread, and convolutions with the plain kernels.

    What oneDNN allocates for a convolution depends on the CPU's instructions, and whether there is
    NNPACK as well.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Not mkldnn.flags, which warns of Intel's GPUs.
    onednn, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        torch.backends.mkldnn.set_flags(onednn)
        torch.set_num_threads(threads)


@contextmanager
def collected() -> Iterator[None]:
    """No garbage collection in here, which would come at any time and call finalizers."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def count_all() -> dict[str, Counts]:
    """The counts of every case, each in an order that stays."""
    return {
        case: {kind: dict(sorted(parts.items())) for kind, parts in count(words).items()}
        for case, words in CASES.items()
    }


def versions() -> dict[str, str]:
    """The versions that the counts depend on, without the build of torch, such as +cpu."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
    }


def unlike(golden: dict[str, Any]) -> str | None:
    """Why the golden file does not hold here, or None if it does."""
    current = versions()
    recorded = {key: golden[key] for key in current}
    if current == recorded:
        return None
    old, new = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (recorded, current))
    return f"{GOLDEN.name} holds for {old}, and here is {new}"


def differences(golden: dict[str, Counts], cases: dict[str, Counts]) -> list[str]:
    """The changes: a line for each count of a case, and one for each operator, module or sum."""
    lines = []
    for case in golden | cases:
        old, new = golden.get(case, {}), cases.get(case, {})
        for kind in old | new:
            was, is_ = old.get(kind, {}), new.get(kind, {})
            changed = [name for name in sorted(was | is_) if was.get(name) != is_.get(name)]
            if changed:
                lines.append(f"{case}: {kind} {_change(sum(was.values()), sum(is_.values()))}")
                if len(was | is_) == 1:
                    continue  # it is the count
                lines += [f"    {n} {_change(was.get(n, 0), is_.get(n, 0))}" for n in changed]
    return lines


def _change(old: int, new: int) -> str:
    return f"{old} -> {new} ({new - old:+d})"


def with_advice(lines: Sequence[str]) -> str:
    """A text of these differences, and what to do about them."""
    return "\n".join(
        [
            f"a step is not as {GOLDEN.name} says (old -> new):",
            *lines,
            f"If that is meant, write the file anew, {WRITE}, and explain each total that is "
            "larger in the message of the commit.",
        ]
    )


def report(cases: dict[str, Counts]) -> str:
    """The totals of each case, and its ten most frequent operators."""
    lines = []
    for case, counts in cases.items():
        lines.append(case)
        lines += [f"    {kind}: {sum(parts.values()):,}" for kind, parts in counts.items()]
        most = Counter(counts["ATen calls"]).most_common(10)
        lines.append("    most often: " + ", ".join(f"{name} {n}" for name, n in most))
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: show(argv))


def show(argv: Sequence[str]) -> None:
    """Count, print the counts and how they differ from the golden file, and write that if told."""
    line = Parser("benchmarks.calls", "Count the calls of a training step.")
    choice = line.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true", help=f"write {GOLDEN.name} anew")
    choice.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = line.parse_args(argv)
    cases = count_all()
    if options.json:
        print(json.dumps(cases))
        return
    print(report(cases))
    if GOLDEN.exists():
        golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
        if other := unlike(golden):
            print(other)
        changed = differences(golden["cases"], cases)
        print(with_advice(changed) if changed else f"All is as {GOLDEN.name} says.")
    if options.write:
        text = json.dumps(versions() | {"cases": cases}, indent=1)
        GOLDEN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
