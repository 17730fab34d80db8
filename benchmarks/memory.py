"""Benchmark of peak memory over the number of micro-batches: `python -m benchmarks.memory`."""

import sys
from collections.abc import Sequence

from tqdm import tqdm

from benchmarks.command import as_command
from lsgd.bench import results
from lsgd.bench.job import open_job
from lsgd.bench.setting import Result, check_not_launched, recipe_facts, recipe_lines
from lsgd.bench.timing import Estimate, Samples, estimate, speed_ratio
from lsgd.errors import UsageError
from lsgd.job.device import pick_device
from lsgd.models import DTYPES
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

ABOUT = """\
Does the memory of a step grow with its passes? One process makes the passes of a batch one after
the other, and its peak should be that of one pass, however large the batch. Here a batch has one
pass of the recipe's size, or --passes of them, each in a fresh process that makes two steps; on a
CPU the peak is that of the whole process, interpreter, libraries and weights included, on a GPU of
what torch has allocated there. So look at what a pass more adds, too. Images are made up. On a CPU
freed memory that glibc keeps counts too; with MALLOC_MMAP_THRESHOLD_=1048576 in the environment it
keeps none, and what grows then is held.

  python -m benchmarks.memory +recipe=bs8k data.image_size=32
  … --passes 256      up to those of a process that hosts all 256 workers
"""

GOAL = 1.02
"""The largest allowed ratio of the peak of many micro-batches to that of a single one."""
STEPS = 2
"""The steps of a process: momentum buffers exist from the second on."""


def memory(argv: Sequence[str]) -> None:
    """Measure the peaks of the recipe's steps, print the report and save it in --out."""
    line = RecipeParser(program="benchmarks.memory", about=ABOUT)
    line.usage = f"{line.usage} [--rounds N] [--passes N] [--limit SECONDS] [--out FOLDER]"
    line.add_argument("--passes", type=int, default=32, help="of the larger batch (32)")
    results.add_options(line, "memory", rounds=6, limit=600)
    recipe, options = line.parse(argv)
    if options.passes < 2:
        raise UsageError(f"--passes {options.passes} leaves nothing to compare; write 2 or more")
    check_not_launched("the steps of one are measured")
    with results.open_record("memory", line.prog, argv, options.out) as record:
        result = recipe_facts(recipe, pick_device(recipe.device)) | {
            "rounds": options.rounds,
            "image_bytes": image_bytes(recipe),
        }
        result["peak_bytes"] = bench(options.words, options.rounds, options.passes, options.limit)
        record.write_report(result, report(result))


def image_bytes(recipe: Recipe) -> int:
    """Return the size in bytes of one of the recipe's images on the device."""
    data = recipe.data
    return data.channels * data.image_size**2 * DTYPES[recipe.precision].itemsize


def bench(overrides: Sequence[str], rounds: int, passes: int, limit: float) -> Samples:
    """Measure the peaks in bytes of steps of one and of `passes` micro-batches, by that number."""
    counts = [1, passes]
    peaks: Samples = {str(count): [] for count in counts}
    with tqdm(total=rounds * len(counts), desc="memory", disable=None, leave=False) as bar:
        for _ in range(rounds):
            for count in counts:
                peaks[str(count)].append(peak(overrides, count, limit))
                bar.update()
    return peaks


def peak(overrides: Sequence[str], passes: int, limit: float) -> int:
    """Return the peak bytes of two steps of `passes` micro-batches in a process of their own.

    The recipe is that of the overrides. Raises UsageError if the process dies, or takes longer than
    `limit` seconds for a request.
    """
    with open_job("benchmarks.step_memory", "single", 1, overrides, limit=limit) as job:
        job.prepare(passes)
        most: int = job.run("steps", STEPS)
        return most


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    peaks: Samples = result["peak_bytes"]
    first, *larger = peaks
    images = result["worker_batch"] * result["workers_per_pass"]
    rows = [
        [
            count,
            str(int(count) * images),
            estimate([value / 2**20 for value in values]).shown(".1f"),
            "1" if count == first else speed_ratio(peaks, count, first).shown(".4f"),
        ]
        for count, values in peaks.items()
    ]
    head = ["passes of a step", "images of a step", "peak, MiB", "times a single pass"]
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        markdown_table(head, rows),
        "",
    ]
    of_images = images * result["image_bytes"] / 2**20
    for count in larger:
        times = speed_ratio(peaks, count, first)
        lines.append(
            f"- {count} passes, at most {GOAL:g} times a single one: "
            f"{times.compare_at_most(GOAL)}, "
            f"{times.shown('.4f')}; each more than the first adds "
            f"{mib_per_micro_batch(peaks, first, count).shown('.2f')} MiB, and its images are of "
            f"{of_images:.2f} MiB"
        )
    return "\n".join(lines)


def mib_per_micro_batch(peaks: Samples, fewer: str, more: str) -> Estimate:
    """Return the MiB that each further micro-batch adds to the peak, compared within rounds."""
    passes = int(more) - int(fewer)
    pairs = zip(peaks[fewer], peaks[more], strict=True)
    return estimate([(after - before) / passes / 2**20 for before, after in pairs])


main = as_command(memory)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
