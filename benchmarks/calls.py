"""Counter of the calls and the memory of one training step, the same on every run.

    python -m benchmarks.calls            # print the counts, and what differs from the golden file
    python -m benchmarks.calls --write    # also rewrite the golden file
    python -m benchmarks.calls --json     # print only the counts, as JSON

Timings resolve 3 to 5 % on the project's machines. One operator too many in every layer costs less
than that, but changes a count. benchmarks/README.md describes what is counted and how to read a
difference.
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

# Batches and images are small, because the counts do not depend on how long an operator takes.
ALL = ("inputs=synthetic", "device=cpu", "worker_batch=4", "data.image_size=8")
SMALL = (*ALL, "+recipe=digits", "workers=8")
# Small buckets split the gradients into several, as in a large model.
RESNET20 = (*ALL, "+recipe=fashion_resnet20", "workers=4", "comm.bucket_mb=0.25")
CASES = {
    "small_resnet, 8 passes of 1 worker": (*SMALL, "workers_per_pass=1"),
    "small_resnet, 1 pass of 8 workers": (*SMALL, "workers_per_pass=8"),
    "resnet20, 4 passes of 1 worker": (*RESNET20, "workers_per_pass=1"),
    "resnet20, 1 pass of 4 workers": (*RESNET20, "workers_per_pass=4"),
}
"""The overrides of the recipe whose step is counted, by case name."""

WARMUP_STEPS = 3
"""Steps before the counted ones, which create the momentum and fill caches of Python and torch."""

Counts = dict[str, dict[str, int]]
"""Counts by kind, then by operator, module or name; `count` lists the kinds."""


class CountedSums(SingleComm):
    """A SingleComm that records the name and size of each sum it starts."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        """The name and the bytes of each sum."""

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Record the sum's name and bytes, then start it as SingleComm does."""
        self.started.append((name, tensor.nbytes))
        return super().start_all_reduce_(tensor, name)


def count_step(overrides: Sequence[str]) -> Counts:
    """Return the counts of one warmed-up training step of the recipe with these overrides.

    The kinds are ATen calls by operator, nested calls included; Python calls, and calls of C
    functions from Python, by the module of the callee or the caller; allocations and their bytes;
    sums over processes and their bytes, by name. The batches are prepared in a list, so no loader
    is counted.
    """
    recipe = config.load_recipe(list(overrides))
    comm, device = CountedSums(), torch.device("cpu")
    with portable_kernels():
        learner = Learner(recipe, comm, device)
        tasks = list(learner.strategy.tasks(0, list(range(WARMUP_STEPS + 2))))
        inputs = learner.workload.inputs()
        steps = [(task, iter(list(inputs.train(task.micro_batches)))) for task in tasks][::-1]

        def step() -> None:
            task, batches = steps.pop()
            train_step(learner, task, batches)

        for _ in range(WARMUP_STEPS):
            step()
        with garbage_collection_disabled():
            python = python_calls(step)
            comm.started.clear()
            # Each counter makes calls of its own, so it gets its own step.
            torch_ = torch_calls(step)
    sums, summed = Counter[str](), Counter[str]()
    for name, size in comm.started:
        sums[name] += 1
        summed[name] += size
    return python | torch_ | {"sums": dict(sums), "bytes summed": dict(summed)}


def python_calls(step: Callable[[], None]) -> Counts:
    """Count the Python functions and the C functions from Python that a step calls, by module.

    A generator counts once for each value. Calls by this module are left out.
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
    """Count the ATen calls and the tensor allocations of a step.

    torch's profiler counts them, since it only observes. A TorchDispatchMode would change the
    counts: with one, autograd adds up the gradients of a branch out of place.
    """
    # Without this Kineto reports its start and stop on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profiler.profile(use_cpu=True, profile_memory=True) as profile:
        step()
    assert profile.kineto_results is not None
    events = profile.kineto_results.events()
    names = Counter(event.name() for event in events)
    # Frees have a negative size.
    sizes = [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]
    return {
        "ATen calls": {name: n for name, n in names.items() if name.startswith("aten::")},
        "allocations": {"cpu": len(sizes)},
        "bytes allocated": {"cpu": sum(sizes)},
    }


@contextmanager
def portable_kernels() -> Iterator[None]:
    """Use one thread and plain convolution kernels within this context.

    What oneDNN allocates for a convolution depends on the CPU's instructions, and on whether torch
    has NNPACK.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # mkldnn.flags would warn of Intel's GPUs.
    onednn, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        torch.backends.mkldnn.set_flags(onednn)
        torch.set_num_threads(threads)


@contextmanager
def garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection in this context, since it calls finalizers at random times."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def count_all() -> dict[str, Counts]:
    """Return the counts of every case, with operators, modules and names sorted."""
    return {
        case: {kind: dict(sorted(parts.items())) for kind, parts in count_step(overrides).items()}
        for case, overrides in CASES.items()
    }


def versions() -> dict[str, str]:
    """Return the versions on which the counts depend, without torch's build suffix such as +cpu."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
    }


def version_mismatch(golden: dict[str, Any]) -> str | None:
    """Return why the golden file does not apply to this machine's versions, or None if it does."""
    current = versions()
    recorded = {key: golden[key] for key in current}
    if current == recorded:
        return None
    old, new = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (recorded, current))
    return f"{GOLDEN.name} holds for {old}, and here is {new}"


def differences(golden: dict[str, Counts], cases: dict[str, Counts]) -> list[str]:
    """List the changed counts: a line for each case and kind, then one for each changed entry."""
    lines = []
    for case in golden | cases:
        old, new = golden.get(case, {}), cases.get(case, {})
        for kind in old | new:
            was, is_ = old.get(kind, {}), new.get(kind, {})
            changed = [name for name in sorted(was | is_) if was.get(name) != is_.get(name)]
            if changed:
                lines.append(f"{case}: {kind} {_change(sum(was.values()), sum(is_.values()))}")
                if len(was | is_) == 1:
                    continue  # its change is the total's
                lines += [f"    {n} {_change(was.get(n, 0), is_.get(n, 0))}" for n in changed]
    return lines


def _change(old: int, new: int) -> str:
    return f"{old} -> {new} ({new - old:+d})"


def format_differences(lines: Sequence[str]) -> str:
    """Return the differences as text, with advice on how to resolve them."""
    return "\n".join(
        [
            f"a step is not as {GOLDEN.name} says (old -> new):",
            *lines,
            f"If that is meant, write the file anew, {WRITE}, and explain each total that is "
            "larger in the message of the commit.",
        ]
    )


def report(cases: dict[str, Counts]) -> str:
    """Return the totals of each case and its ten most frequent operators as text."""
    lines = []
    for case, counts in cases.items():
        lines.append(case)
        lines += [f"    {kind}: {sum(parts.values()):,}" for kind, parts in counts.items()]
        most = Counter(counts["ATen calls"]).most_common(10)
        lines.append("    most often: " + ", ".join(f"{name} {n}" for name, n in most))
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    return run_alone(lambda: show(argv))


def show(argv: Sequence[str]) -> None:
    """Print the counts and their differences to the golden file; rewrite the file with --write."""
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
        if other := version_mismatch(golden):
            print(other)
        changed = differences(golden["cases"], cases)
        print(format_differences(changed) if changed else f"All is as {GOLDEN.name} says.")
    if options.write:
        text = json.dumps(versions() | {"cases": cases}, indent=1)
        GOLDEN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
