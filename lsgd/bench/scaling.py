"""The benchmark of strong and weak scaling on this machine: `python -m lsgd.bench scaling`."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from lsgd.bench import results
from lsgd.bench.job import Job, open_job, parse_numbers
from lsgd.bench.scaled_steps import STRONG, WEAK
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    recipe_facts,
    recipe_lines,
    record_refusal,
)
from lsgd.bench.timing import Samples, TimedWork, estimate, measure, speed_ratio
from lsgd.errors import UsageError
from lsgd.job.device import pick_device
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

ABOUT = """\
Measure how training scales with the processes of this machine.

Training steps of a recipe run on synthetic images that are on the device already, with

  strong scaling    the recipe as it is, its workers shared by more and more processes
  weak scaling      as many workers for each process as the recipe has in all

in images/s, and the efficiency against one process: the speed over that of one process, divided by
the number of processes. The jobs all run at the same time and take turns, so that every round
measures each once; what is compared is the ratio within a round. A processor's cores are shared
among the processes of a job, unless OMP_NUM_THREADS sets the threads of each.

  python -m lsgd.bench scaling recipe=fashion_bs1k --np 1,2,4
"""


def main(argv: Sequence[str]) -> None:
    """Run the scaling benchmark by its command line, print its report and save it in --out."""
    line = RecipeParser(program="lsgd.bench scaling", about=ABOUT)
    line.add_argument("--np", default="1,2,4", metavar="N,…", help="numbers of processes (1,2,4)")
    line.add_argument("--steps", type=int, default=2, metavar="N", help="steps of a round (2)")
    results.add_options(line, "scaling", rounds=8, limit=300)
    recipe, options = line.parse(argv)
    check_not_launched("this benchmark starts its own")
    processes = parse_numbers("--np", options.np, least=1)
    if options.steps <= 0:
        raise UsageError(f"--steps {options.steps} is not possible; write a number above 0")
    result = recipe_facts(recipe, pick_device(recipe.device)) | {
        "rounds": options.rounds,
        "steps_per_round": options.steps,
    }
    with results.open_record("scaling", line.prog, argv, options.out) as record:
        bench(result, sorted({1, *processes}), options, record)
        if not result["speeds"]:
            raise UsageError("; ".join(result["missing"].values()))
        record.write_report(result, report(result))


def bench(
    result: Result, processes: Sequence[int], options: Namespace, record: results.BenchmarkRecord
) -> None:
    """Measure training speed on these numbers of processes, under strong and weak scaling.

    The measurements are stored in `result`: `jobs` gets facts about each job, `speeds` its
    images/s, and `missing` the reason for what is not measured.
    """
    result |= {"jobs": {}, "speeds": {}, "missing": {}}
    with ExitStack() as running:
        jobs: dict[int, Job] = {}
        for number in processes:
            with record_refusal(result, f"{number} processes"):
                # Waiting jobs of torch.distributed use no CPU time of the running one.
                opening = open_job(
                    "lsgd.bench.scaled_steps", "torch", number, options.words, limit=options.limit
                )
                jobs[number] = running.enter_context(opening)
        for kind in (STRONG, WEAK):
            facts = {}
            for number, job in jobs.items():
                with record_refusal(result, f"{kind} scaling on {number} processes"):
                    facts[str(number)] = job.prepare(kind)
            if "1" not in facts:
                continue  # the baseline is missing
            print(f"{kind} scaling, {options.rounds} rounds", flush=True)
            works = {
                number: _steps(jobs[int(number)], kind, options.steps, of_job["images"])
                for number, of_job in facts.items()
            }
            with record_refusal(result, f"{kind} scaling"):
                speeds = measure(works, options.rounds, what=f"{kind} scaling")
                result["jobs"][kind], result["speeds"][kind] = facts, speeds
            record.write_result(result)


def report(result: Result) -> str:
    """Format the result of the scaling benchmark as a Markdown report."""
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds; medians (and intervals of 95 %)",
        "",
    ]
    for kind, speeds in result["speeds"].items():
        lines += [table(kind, speeds, result["jobs"][kind], result["machine"]["cores"]), ""]
    lines += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join(lines).rstrip()


def table(kind: str, speeds: Samples, jobs: dict[str, Any], cores: int) -> str:
    """Format the images/s and efficiency by number of processes as a Markdown table."""
    head = [
        f"{kind} scaling: processes",
        "cores each",
        "images a step",
        "workers a pass",
        "images/s",
        "efficiency",
    ]
    rows = []
    for number, values in speeds.items():
        job, times, processes = jobs[number], speed_ratio(speeds, number, "1"), int(number)
        low, middle, high = (100 * x / processes for x in (times.low, times.median, times.high))
        rows.append(
            [
                f"{number}, {job['over']}",
                f"{cores / processes:g}, threads: {job['threads']}",
                str(job["images"]),
                str(job["workers_per_pass"]),
                estimate(values).shown(".0f"),
                f"{middle:.0f} % ({low:.0f} to {high:.0f})" if processes > 1 else "100 %",
            ]
        )
    return markdown_table(head, rows)


def _steps(job: Job, kind: str, steps: int, images: int) -> TimedWork:
    def work(number: int) -> int:
        job.run(kind, steps)
        return steps * images

    return work
