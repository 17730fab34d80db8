"""Benchmark of summing the gradients over processes: `python -m benchmarks.comm`.

The report is Markdown, for a README as for a terminal.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import product

from benchmarks.command import as_command
from benchmarks.reductions import BARE, COMPARED_AFTER, DDP, HOROVOD, OURS, SUMS_ONLY
from lsgd.bench import results
from lsgd.bench.job import FUSION, Job, open_job, parse_numbers
from lsgd.bench.setting import Result, check_not_launched, recipe_facts, recipe_lines
from lsgd.bench.timing import Estimate, Samples, TimedWork, estimate, measure, time_ratio
from lsgd.errors import UsageError
from lsgd.job.device import pick_device
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

ABOUT = f"""\
What does it cost to sum the gradients over processes? Training steps of a recipe's model, with

  {OURS:<26}lsgd's reducer, over torch.distributed and over Horovod
  {DDP:<26}of torch: as views of buckets of the same size (comm.bucket_mb), no
                            broadcast of buffers, no_sync for all passes but the last
  {HOROVOD:<26}with backward_passes_per_step, in Horovod's own settings
  {BARE:<26}each process alone

A pass has workers_per_pass x worker_batch made-up images, which are on the device already; a step
has as many passes as --accumulation says, on every process. Model, per-worker BN, loss and
optimizer are the same, and so are the parameters they come to. Jobs of several processes are
started here. In a job every round measures each candidate once; what is compared is the ratio of
times within a round. The share that is hidden behind the backward pass is

  1 - (a step - the same step without any sum) / (the sums alone)

Over Horovod ours shares a job with hvd.DistributedOptimizer, so that they can take turns, and with
it Horovod's own fusion of 128 MiB, which a training run of lsgd switches off; several buckets may
go as one here. HOROVOD_FUSION_THRESHOLD=0 before the command switches it off for both.

  python -m benchmarks.comm +recipe=bs256 inputs=synthetic data.image_size=64 worker_batch=8
  … --np 2 --passes 4 --rounds 60      fewer comparisons; many short rounds, with narrower intervals
"""

OTHERS = {"torch": DDP, "horovod": HOROVOD}
"""The candidate with which lsgd's reducer is compared, by communication library."""
GOALS = {DDP: 1.03, HOROVOD: 1.0}
"""The largest allowed ratio of lsgd's step time to the other candidate's."""


def comm(argv: Sequence[str]) -> None:
    """Measure the requested jobs, print the report and save it in --out."""
    line = RecipeParser(program="benchmarks.comm", about=ABOUT)
    line.usage = (
        f"{line.usage} [--np N,…] [--accumulation N,…] [--over LIBRARY,…] [--rounds N] "
        "[--passes N] [--limit SECONDS] [--out FOLDER]"
    )
    line.add_argument("--np", default="2,4", help="processes of a job (2,4)")
    line.add_argument("--accumulation", default="1,8", help="passes of a step (1,8)")
    line.add_argument("--over", default="torch,horovod", help="libraries (torch,horovod)")
    line.add_argument("--passes", type=int, default=16, help="about as many a round (16)")
    results.add_options(line, "comm", rounds=12, limit=300)
    recipe, options = line.parse(argv)
    _check_comparable(recipe)
    libraries = options.over.split(",")
    if unknown := [library for library in libraries if library not in OTHERS]:
        raise UsageError(
            f"--over {unknown[0]} is no library; write torch, horovod or torch,horovod"
        )
    check_not_launched("this benchmark starts its own")
    processes = parse_numbers("--np", options.np, least=2)
    accumulations = parse_numbers("--accumulation", options.accumulation, least=1)
    if options.passes <= 0:
        raise UsageError(f"--passes {options.passes} is not possible; write a number above 0")
    result = recipe_facts(recipe, pick_device(recipe.device)) | {
        "bucket_mb": recipe.comm.bucket_mb,
        "fusion": os.environ.get("HOROVOD_FUSION_THRESHOLD", FUSION),
        "rounds": options.rounds,
        "measured": [],
        "missing": {},
    }
    with results.open_record("comm", line.prog, argv, options.out) as record:
        for library, number in product(libraries, processes):
            bench_job(result, library, number, accumulations, options)
            record.write_result(result)
        if not result["measured"]:
            raise UsageError("; ".join(result["missing"].values()))
        record.write_report(result, report(result))


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds; buckets of {result['bucket_mb']:g} MiB; medians (and "
        "intervals of 95 %)",
        "",
    ]
    verdicts = []
    for job in result["measured"]:
        rounds, other = job["per_second"], OTHERS[job["library"]]
        where = f"{job['processes']} processes, {job['over']}, accumulation {job['accumulation']}"
        lines += [_table(f"{where}, threads per process: {job['threads']}", rounds, other), ""]
        if other in rounds:
            times, goal = time_ratio(rounds, OURS, other), GOALS[other]
            verdicts.append(
                f"- {where}: a step of ours takes at most {goal:g} times that of {other}: "
                f"{times.compare_at_most(goal)}, "
                f"{times.shown('.3f')}; after {COMPARED_AFTER} steps their parameters were "
                f"{job['apart'][other]:.1g} apart"
            )
    if any(job["library"] == "horovod" for job in result["measured"]):
        verdicts.append(
            f"- over Horovod all ran with HOROVOD_FUSION_THRESHOLD={result['fusion']}; a training "
            "run of lsgd has 0"
        )
    verdicts += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join([*lines, *verdicts])


def exposed_milliseconds(rounds: Samples, name: str) -> Estimate:
    """Return by how many milliseconds the gradient sums lengthen a candidate's step."""
    pairs = zip(rounds[name], rounds[BARE], strict=True)
    return estimate([1000 * (1 / step - 1 / bare) for step, bare in pairs])


def hidden_percent(rounds: Samples, name: str) -> Estimate:
    """Return the percentage of the sums that a candidate hides behind the backward pass."""
    triples = zip(rounds[name], rounds[BARE], rounds[SUMS_ONLY], strict=True)
    return estimate([100 * (1 - (1 / step - 1 / bare) * alone) for step, bare, alone in triples])


def _table(title: str, rounds: Samples, other: str) -> str:
    rows = []
    for name in (OURS, other, BARE, SUMS_ONLY):
        if name in rounds:
            takes_part = name in (OURS, other)
            rows.append(
                [
                    name,
                    estimate([1000 / speed for speed in rounds[name]]).shown(".1f"),
                    time_ratio(rounds, name, BARE).shown(".3f") if name != BARE else "1",
                    exposed_milliseconds(rounds, name).shown(".1f") if takes_part else "",
                    hidden_percent(rounds, name).shown(".0f") if takes_part else "",
                ]
            )
    return markdown_table([title, "ms a step", f"times {BARE}", "ms exposed", "% hidden"], rows)


def bench_job(
    result: Result, library: str, processes: int, accumulations: Sequence[int], options: Namespace
) -> None:
    """Measure one job at each number of accumulated micro-batches.

    Each becomes an entry of `measured` in the result, or `missing` has the reason why not.
    """
    where = f"{processes} processes over {library}"
    print(f"{where}, {options.rounds} rounds", flush=True)
    left = list(accumulations)
    try:
        with open_job(
            "benchmarks.reductions", library, processes, options.words, limit=options.limit
        ) as job:
            for accumulation in accumulations:
                facts = job.prepare(accumulation)
                steps = max(1, round(options.passes / accumulation))
                names = [name for name in (OURS, OTHERS[library], BARE) if name in facts["names"]]
                per_second = measure(
                    {name: _steps(job, name, steps) for name in (*names, SUMS_ONLY)},
                    options.rounds,
                    what=f"{where}, accumulation {accumulation}",
                )
                for name, why in facts.pop("missing").items():
                    result["missing"][f"{name}, {where}, accumulation {accumulation}"] = why
                result["measured"].append(
                    {
                        "library": library,
                        "processes": processes,
                        "accumulation": accumulation,
                        "steps_per_round": steps,
                        "per_second": per_second,
                    }
                    | facts
                )
                left.remove(accumulation)
    except UsageError as refusal:
        for accumulation in left:
            result["missing"][f"{where}, accumulation {accumulation}"] = str(refusal)


def _steps(job: Job, candidate: str, steps: int) -> TimedWork:
    def work(number: int) -> int:
        job.run(candidate, steps)
        return steps

    return work


def _check_comparable(recipe: Recipe) -> None:
    """Raise UsageError if the recipe makes lsgd do work that the other candidates do not."""
    if recipe.gradient_compression != "none":
        raise UsageError(
            f"gradient_compression={recipe.gradient_compression} would make the sums of lsgd alone "
            "smaller; write gradient_compression=none"
        )
    if recipe.optim.clip_norm is not None:
        raise UsageError(
            f"optim.clip_norm={recipe.optim.clip_norm:g} needs the norm of the gradient, which "
            "lsgd's sums alone give; write optim.clip_norm=null"
        )
    if recipe.compile:
        raise UsageError(
            "compile=true is not for this benchmark, whose models are not compiled; write "
            "compile=false"
        )


main = as_command(comm)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
