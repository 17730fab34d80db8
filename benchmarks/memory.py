"""Does a larger batch need more memory? `python -m benchmarks.memory`: peaks against passes."""

import sys
from collections.abc import Sequence

from tqdm import tqdm

from lsgd.bench import results
from lsgd.bench.job import open_job
from lsgd.bench.setting import Result, check_not_launched, recipe_lines, setting_of
from lsgd.bench.timing import Estimate, Samples, check_rounds, estimate, ratio
from lsgd.config import RecipeParser
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.models import DTYPES
from lsgd.recipe import Recipe
from lsgd.tables import markdown

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
"""At most how many times the peak of a single pass that of many may be."""
STEPS = 2
"""Steps of a process: momentum exists from the second on."""


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_command(lambda: memory(argv))


def memory(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = RecipeParser(program="benchmarks.memory", about=ABOUT)
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
    check_not_launched("the steps of one are measured")
    with results.recording("memory", line.prog, argv, options.out) as record:
        result = setting_of(recipe, pick_device(recipe.device)) | {
            "rounds": options.rounds,
            "image_bytes": image_bytes(recipe),
        }
        result["peak_bytes"] = bench(options.words, options.rounds, options.passes, options.limit)
        record.end(result, report(result))


def image_bytes(recipe: Recipe) -> int:
    """The bytes of an image on the device."""
    data = recipe.data
    return data.channels * data.image_size**2 * DTYPES[recipe.precision].itemsize


def bench(words: Sequence[str], rounds: int, passes: int, limit: float) -> Samples:
    """The peaks in bytes of a step of one pass and of one of many, by their number of passes."""
    counts = [1, passes]
    peaks: Samples = {str(count): [] for count in counts}
    with tqdm(total=rounds * len(counts), desc="memory", disable=None, leave=False) as bar:
        for _ in range(rounds):
            for count in counts:
                peaks[str(count)].append(peak(words, count, limit))
                bar.update()
    return peaks


def peak(words: Sequence[str], passes: int, limit: float) -> int:
    """Bytes that two steps of `passes` passes need at most, in a process of their own.

    The recipe is that of these words. Raises Refused if the process dies, or takes longer than
    `limit` seconds for a request.
    """
    with open_job("benchmarks.step_memory", "single", 1, words, limit=limit) as job:
        job.prepare(passes)
        most: int = job.run("steps", STEPS)
        return most


def report(result: Result) -> str:
    """The result as a report in Markdown."""
    peaks: Samples = result["peak_bytes"]
    first, *larger = peaks
    images = result["worker_batch"] * result["workers_per_pass"]
    rows = [
        [
            count,
            str(int(count) * images),
            estimate([value / 2**20 for value in values]).shown(".1f"),
            "1" if count == first else ratio(peaks, count, first).shown(".4f"),
        ]
        for count, values in peaks.items()
    ]
    head = ["passes of a step", "images of a step", "peak, MiB", "times a single pass"]
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        markdown(head, rows),
        "",
    ]
    of_images = images * result["image_bytes"] / 2**20
    for count in larger:
        times = ratio(peaks, count, first)
        lines.append(
            f"- {count} passes, at most {GOAL:g} times a single one: {times.within(GOAL)}, "
            f"{times.shown('.4f')}; each more than the first adds "
            f"{added(peaks, first, count).shown('.2f')} MiB, and its images are of "
            f"{of_images:.2f} MiB"
        )
    return "\n".join(lines)


def added(peaks: Samples, fewer: str, more: str) -> Estimate:
    """MiB by which every further pass raises the peak, compared within each round."""
    passes = int(more) - int(fewer)
    pairs = zip(peaks[fewer], peaks[more], strict=True)
    return estimate([(after - before) / passes / 2**20 for before, after in pairs])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
