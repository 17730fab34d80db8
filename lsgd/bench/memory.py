"""Does a larger batch need more memory? `python -m lsgd.bench memory`: peaks against passes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from lsgd.bench import results
from lsgd.bench.fresh import in_fresh_process
from lsgd.bench.loaders import passes_of_step
from lsgd.bench.setting import Found, said_of, setting_of
from lsgd.bench.steps import alone
from lsgd.bench.table import head, row, shown
from lsgd.bench.timing import Estimate, Rounds, check_rounds, estimate, ratio
from lsgd.config import CommandLine
from lsgd.errors import Refused
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.network import DTYPES
from lsgd.recipe import Recipe
from lsgd.train import train_step

ABOUT = """\
Does the memory of a step grow with its passes? One process makes the passes of a batch one after
the other, and its peak should be that of one pass, however large the batch. Here a batch has one
pass of the recipe's size, or --passes of them, each in a fresh process that makes two steps; on a
CPU the peak is that of the whole process, interpreter, libraries and weights included, on a GPU of
what torch has allocated there. So look at what a pass more adds, too. Images are made up. On a CPU
freed memory that glibc keeps counts too; with MALLOC_MMAP_THRESHOLD_=1048576 in the environment it
keeps none, and what grows then is held.

  python -m lsgd.bench memory +recipe=bs8k data.image_size=32
  … --passes 256      up to those of a process that hosts all 256 workers
"""

GOAL = 1.02
"""At most so many times the peak of a single pass."""
STEPS = 2
"""Momentum is there from the second on."""


def main(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = CommandLine(program="lsgd.bench memory", about=ABOUT)
    line.usage = f"{line.usage} [--rounds N] [--passes N] [--limit SECONDS] [--out FOLDER]"
    line.add_argument("--rounds", type=int, default=6, help="how often each is measured (6)")
    line.add_argument("--passes", type=int, default=32, help="of the larger batch (32)")
    line.add_argument(
        "--limit", type=float, default=600, help="seconds after which a process is given up (600)"
    )
    results.add_out(line, "memory")
    recipe, options = line.read(argv)
    check_rounds(options.rounds)
    if options.passes < 2:
        raise Refused(f"--passes {options.passes} leaves nothing to compare; write 2 or more")
    if options.limit <= 0:
        raise Refused(f"--limit {options.limit:g} is not possible; write a number above 0")
    with results.recording("memory", line.prog, argv, options.out) as record:
        found = bench(recipe, options.rounds, options.passes, options.limit)
        record.end(found, report(found))


def bench(recipe: Recipe, rounds: int, passes: int, limit: float) -> Found:
    """All that is measured, as JSON can hold it."""
    _, device = alone(recipe)
    counts = [1, passes]
    peaks: Rounds = {str(count): [] for count in counts}
    with tqdm(total=rounds * len(counts), desc="memory", disable=None, leave=False) as bar:
        for _ in range(rounds):
            for count in counts:
                peaks[str(count)].append(peak(recipe, count, limit))
                bar.update()
    image_bytes = (
        recipe.data.channels * recipe.data.image_size**2 * DTYPES[recipe.precision].itemsize
    )
    here = setting_of(recipe, device) | {"rounds": rounds, "image_bytes": image_bytes}
    return here | {"peak_bytes": peaks}


def peak(recipe: Recipe, passes: int, limit: float) -> int:
    """Bytes that two steps of so many passes need at most, in a process of their own.

    Raises Refused if they do not end in so many seconds, or the process dies.
    """
    return in_fresh_process(limit, _train, recipe, passes)


def report(found: Found) -> str:
    """What was found, in Markdown."""
    peaks: Rounds = found["peak_bytes"]
    first, *larger = peaks
    lines = [
        *said_of(found),
        f"{found['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        *head("passes of a step", "images of a step", "peak, MiB", "times a single pass"),
    ]
    images = found["worker_batch"] * found["workers_per_pass"]
    for count, values in peaks.items():
        times = "1" if count == first else shown(ratio(peaks, count, first), ".4f")
        mebibytes = estimate([value / 2**20 for value in values])
        lines.append(row(count, str(int(count) * images), shown(mebibytes, ".1f"), times))
    lines.append("")
    of_images = images * found["image_bytes"] / 2**20
    for count in larger:
        times_ = ratio(peaks, count, first)
        lines.append(
            f"- {count} passes, at most {GOAL:g} times a single one: {times_.within(GOAL)}, "
            f"{shown(times_, '.4f')}; each more than the first adds "
            f"{shown(added(peaks, first, count), '.2f')} MiB, and its images are of "
            f"{of_images:.2f} MiB"
        )
    return "\n".join(lines)


def added(peaks: Rounds, fewer: str, more: str) -> Estimate:
    """MiB by which every further pass raises the peak, compared within each round."""
    passes = int(more) - int(fewer)
    pairs = zip(peaks[fewer], peaks[more], strict=True)
    return estimate([(after - before) / passes / 2**20 for before, after in pairs])


def _train(recipe: Recipe, passes: int) -> int:
    comm, device = alone(recipe)
    workers = passes * recipe.pass_workers
    # No more examples than needed: the order of a whole ImageNet would be the peak.
    data = replace(recipe.data, train_examples=workers * recipe.worker_batch)
    recipe = replace(recipe, workers=workers, data=data)
    learner = Learner(recipe, comm, device)
    plan = passes_of_step(recipe, 0)
    assert len(plan) == passes
    inputs = SyntheticInputs(data, seed=recipe.seed, device=device)
    for _ in range(STEPS):
        train_step(learner, 0, plan, inputs.train(plan))
    learner.guard.check()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_peak()


def resident_peak() -> int:
    """Bytes that this process has had in RAM at most."""
    # Not getrusage, which goes on from the peak of the process that this one was forked from.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
