"""Benchmark of dynamic batching on trees: `python -m benchmarks.fold`.

The report is Markdown, for a README as for a terminal.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch

from benchmarks.command import as_command
from benchmarks.figure import write_figure
from benchmarks.folded_steps import (
    FOLD,
    FOLD_RECORDING,
    LOWER_BOUND,
    MERGE,
    MOST_ALONE,
    ONE_BY_ONE,
    RECORD,
    SAME_SHAPE,
    TORCHFOLD,
    TORCHFOLD_RECORD,
)
from benchmarks.torchfold import VERSION, fetch_wheel
from lsgd.bench import results
from lsgd.bench.job import Job, open_job, parse_numbers
from lsgd.bench.results import BenchmarkRecord
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    environment_facts,
    machine_lines,
    record_refusal,
)
from lsgd.bench.timing import Estimate, Samples, TimedWork, estimate, measure, speed_ratio
from lsgd.errors import UsageError
from lsgd.job.command import integer_from
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

LEAVES = 128
"""The number of leaves of a random tree, as in TensorFlow Fold's benchmark."""
ABOUT = f"""\
What does dynamic batching gain? Networks on trees, batched in several ways on one thread:

  {ONE_BY_ONE:19}  a call for each node; the leaves are looked up in one
  {SAME_SHAPE:19}  as if all trees had the shape of the first, so that its nodes make a batch
  {TORCHFOLD:19}  TorchFold 0.1.0, with a few lines changed for the torch of today
  {FOLD_RECORDING:19}  lsgd.fold, where every step records its trees
  {FOLD:19}  lsgd.fold of trees that are recorded already: a step merges and applies
  {LOWER_BOUND:19}  a call for all leaves and one for all nodes: no network, but the rest to gain

All of them on the benchmark of TensorFlow Fold (Looks et al. 2017, table 1): random binary trees
of {LEAVES} leaves. All leaves of a batch have different rows of the embedding, since TorchFold
makes equal calls only once. One at a time, {MOST_ALONE} trees of a batch stand for the rest. Then
on the training trees of a recipe, but not by hand and not recorded anew, in a process that has just
begun, so that it also says what reading and recording take.

All have the same weights and are checked to come to the same values and gradients. They take turns,
so that every round measures each once, after a step that does not count; ratios are of one round,
and medians of the rounds count. The times are CPU seconds: of the forward pass for inference, of
both passes for training, without an update; memory that is freed is kept for the next step, and
Python's garbage collector leaves alone what was there before.
TorchFold is fetched once, into the user's cache; without a network it is left out.

  python -m benchmarks.fold +recipe=sst_treelstm
  … --sizes 128 --batches 1,64        shorter: some minutes
"""
REAL_BATCHES = (25, 64)
"""The batch sizes in trees on a recipe's data: that of Tai et al. 2015, and a larger one."""
MODES = {False: "inference", True: "training"}
SETTING_COLUMNS = {"size": "size", "": "training", "trees": "batch"}
"""The columns that identify a measurement, by the keys of its settings."""


RANDOM_METHODS = (ONE_BY_ONE, SAME_SHAPE, TORCHFOLD, FOLD_RECORDING, FOLD, LOWER_BOUND)
RANDOM_PAIRS = (
    (FOLD, TORCHFOLD),
    (FOLD_RECORDING, TORCHFOLD),
    (FOLD, LOWER_BOUND),
    (FOLD, SAME_SHAPE),
    (TORCHFOLD, SAME_SHAPE),
    (ONE_BY_ONE, FOLD),
)
RECIPE_METHODS = (ONE_BY_ONE, TORCHFOLD, FOLD, LOWER_BOUND, MERGE)
REAL_PAIRS = ((ONE_BY_ONE, FOLD), (FOLD, TORCHFOLD), (FOLD, LOWER_BOUND))
SCHEDULING = (RECORD, MERGE, TORCHFOLD_RECORD)
COST = f"Cost, which is the time of {FOLD} over that of {SAME_SHAPE}"
SPEEDUP = f"Speed-up, which is the time of {ONE_BY_ONE} over that of {FOLD}"
PAPER_CURVES = ("Looks 2017, CPU", "Looks 2017, GPU")
PAPER = {
    1: (0.49, 0.23, 1.97, 4.47),
    32: (0.82, 0.40, 14.94, 68.79),
    64: (1.06, 0.48, 18.55, 96.40),
    128: (1.18, 0.69, 21.47, 115.05),
    256: (1.26, 1.03, 25.23, 120.86),
    512: (1.30, 1.34, 27.68, 114.15),
    1024: (1.27, 1.62, 28.86, 101.79),
}
"""Table 1 of Looks et al. 2017 by batch size: cost on CPU and GPU, speed-up on CPU and GPU.

The paper's speed-up is over one tree at a time batched by hand; its cost leaves out scheduling.
"""

Measurement = dict[str, Any]
"""A measurement's settings, with the seconds per batch by method and round in `seconds`."""


def fold(argv: Sequence[str]) -> None:
    """Measure the requested batching methods, print the report and save it in --out."""
    line = RecipeParser(program="benchmarks.fold", about=ABOUT)
    line.usage = (
        f"{line.usage} [--sizes N,…] [--batches N,…] [--trees N] [--rounds N] [--limit SECONDS] "
        "[--out FOLDER]"
    )
    line.add_argument("--sizes", default="128,512", help="sizes of a node's state (128,512)")
    line.add_argument("--batches", default="1,8,32,64,256", help="trees of a step (1,8,32,64,256)")
    line.add_argument(
        "--trees", type=integer_from(1), default=32, help="at least N of each in a round (32)"
    )
    results.add_options(line, "fold", rounds=9, limit=600)
    recipe, options = line.parse(argv)
    check_not_launched("this benchmark starts its own")
    remedy = "write +recipe=sst_treelstm"
    check_supported(recipe, "benchmarks.fold", remedy, workloads=("trees",))
    if recipe.model.name != "treelstm":
        raise UsageError(
            f"TorchFold cannot run model={recipe.model.name}, which takes lists of nodes; write "
            "model=treelstm"
        )
    sizes = parse_numbers("--sizes", options.sizes, least=1)
    batches = parse_numbers("--batches", options.batches, least=1)
    torch.set_num_threads(1)  # the report states it; as in the measured processes
    result = environment_facts(torch.device("cpu")) | {
        "recipe": recipe.name,
        "dataset": recipe.data.name,
        "rounds": options.rounds,
        "leaves": LEAVES,
    }
    with results.open_record("fold", line.prog, argv, options.out) as record:
        bench(result, recipe, sizes, batches, options, record)
        write_figure(record, result, draw)
        record.write_report(result, report(result))


def bench(
    result: Result,
    recipe: Recipe,
    sizes: Sequence[int],
    batches: Sequence[int],
    options: Namespace,
    record: BenchmarkRecord,
) -> None:
    """Measure all batching methods, and store their measurements in the result.

    `random` and `scheduling` have those on random trees, `real` those on the recipe's trees, and
    `missing` the reason for each that could not be measured.
    """
    result |= {"missing": {}, "random": [], "scheduling": [], "real": []}
    wheel: str | None = None
    with record_refusal(result, TORCHFOLD):
        wheel = str(fetch_wheel())
        result["versions"]["torchfold"] = VERSION

    def opened() -> AbstractContextManager[Job]:
        module = "benchmarks.folded_steps"
        return open_job(module, "single", 1, options.words, limit=options.limit)

    def measured(job: Job, batch: int, **given: Any) -> Measurement:
        print(" ".join(f"{key}={value}" for key, value in given.items()), batch, flush=True)
        count = -(-options.trees // batch)
        facts: dict[str, Any] = job.prepare(
            given | {"torchfold": wheel, "batch": batch, "count": count}
        )
        done: Samples = {name: [] for name in facts["ways"]}
        works = {name: _work(job, name, count, times) for name, times in done.items()}
        measure(works, options.rounds, what="fold")
        # The first round is a warm-up.
        return given | facts | {"batch": batch, "seconds": {n: t[1:] for n, t in done.items()}}

    # A fresh process for each data set, so that reading and recording are measured from scratch.
    with record_refusal(result, f"what is on the trees of {recipe.name}"), opened() as job:
        for batch, training in product(REAL_BATCHES, MODES):
            row = measured(job, batch, what="recipe", training=training)
            result["real"].append(row)
            record.write_result(result)
    with opened() as job:
        for batch in batches:
            result["scheduling"].append(measured(job, batch, what="scheduling", leaves=LEAVES))
        for size, training, batch in product(sizes, MODES, batches):
            given = {"what": "random", "leaves": LEAVES, "size": size, "training": training}
            result["random"].append(measured(job, batch, **given))
            record.write_result(result)


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    random, real = result["random"], result["real"]
    lines = [
        f"Trees in torch, one thread: random ones of {result['leaves']} leaves, and "
        f"{result['dataset']}",
        *machine_lines(result),
        f"{result['rounds']} rounds; medians, and of ratios intervals of 95 % as well",
    ]
    lines += _section(
        "CPU milliseconds of a batch of random trees", _table(random, _milliseconds(RANDOM_METHODS))
    )
    lines += _section(
        "One time over another, of the same round", _table(random, _ratios(RANDOM_PAIRS))
    )
    lines += ["", *(f"- {sentence}" for sentence in _crossings(random))]
    for title, curves in compare_with_paper(random).items():
        batches = sorted({batch for curve in curves.values() for batch in curve})
        medians = [
            [f"{curve[batch].median:.2f}" if batch in curve else "–" for curve in curves.values()]
            for batch in batches
        ]
        rows = [[str(batch), *row] for batch, row in zip(batches, medians, strict=True)]
        lines += _section(title, markdown_table(["trees", *curves], rows))
    lines += [
        "",
        "Looks et al. 2017 have states of size 1024 and inference, with 32 threads on two Xeons of "
        "8 cores or on a GTX 1080, and leave out what a schedule takes; here it counts.",
    ]
    title = f"Scheduling alone, CPU milliseconds of a tree of {result['leaves']} leaves"
    lines += _section(title, _table(result["scheduling"], _milliseconds_of_a_tree(SCHEDULING)))
    if real:
        fresh = real[0]
        launches = {
            row["batch"]: f"{row['launches']:.1f} calls for {row['batch']} trees" for row in real
        }
        lines += [
            "",
            f"{result['dataset']}, in a process that has just begun: reading took "
            f"{fresh['reading_seconds']:.2f} CPU seconds, and recording the {fresh['examples']} "
            f"training trees, of {fresh['nodes']} nodes, {fresh['recording_seconds']:.2f}. On "
            f"average there are {' and '.join(launches.values())}.",
        ]
        lines += _section(
            "CPU milliseconds of a tree", _table(real, _milliseconds_of_a_tree(RECIPE_METHODS))
        )
        lines += _section(
            "One time over another, of the same round", _table(real, _ratios(REAL_PAIRS))
        )
    apart = max(row["difference"] for row in (*random, *real))
    lines += ["", f"- values and gradients of all ways are the same within {apart:.0e}"]
    lines += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join(lines)


def compare_with_paper(
    measured: Sequence[Measurement],
) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Return the paper's and the measured ratios by title, curve and batch size in trees.

    The curves of the paper are those of table 1 of Looks et al. 2017.
    """
    tables = {}
    for number, (title, pair) in enumerate(
        ((COST, (FOLD, SAME_SHAPE)), (SPEEDUP, (ONE_BY_ONE, FOLD)))
    ):
        curves = {
            name: {batch: Estimate(*[row[2 * number + device]] * 3) for batch, row in PAPER.items()}
            for device, name in enumerate(PAPER_CURVES)
        }
        for row in measured:
            curve = curves.setdefault(f"size {row['size']}, {MODES[row['training']]}", {})
            curve[row["batch"]] = speed_ratio(row["seconds"], *pair)
        tables[title] = curves
    return tables


def draw(result: Result) -> dict[str, bytes]:
    """Return the figure's files by name; raise ImportError without matplotlib."""
    from benchmarks.plots import fold_curves

    return fold_curves(compare_with_paper(result["random"]), dashed=PAPER_CURVES)


def _crossings(measured: Sequence[Measurement]) -> Iterator[str]:
    """Yield a sentence for each curve: whether the cost rises with the batch and crosses 1."""
    for name, curve in compare_with_paper(measured)[COST].items():
        if name in PAPER_CURVES:
            continue
        costs = [curve[batch].median for batch in sorted(curve)]
        rises = all(one <= other for one, other in pairwise(costs))
        above = [batch for batch in sorted(curve) if curve[batch].compare_at_least(1) == "yes"]
        below = [batch for batch in sorted(curve) if curve[batch].compare_at_most(1) == "yes"]
        yield (
            f"{name}: the cost {'rises' if rises else 'does not always rise'} with the batch, is "
            f"below 1 at {_list(below)} and above 1 at {_list(above)}"
        )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _work(job: Job, name: str, count: int, times: list[float]) -> TimedWork:
    def work(number: int) -> int:
        times.append(job.run(name, count))
        return count

    return work


def _section(title: str, table: str) -> list[str]:
    return ["", f"{title}:", "", table]


def _table(
    measured: Sequence[Measurement], columns: Mapping[str, Callable[[Measurement], str]]
) -> str:
    """Return a Markdown table with a row for each measurement, identified by its first cells."""
    of = {name: key for name, key in SETTING_COLUMNS.items() if key in measured[0]}
    rows = [
        [*(_said(row[key]) for key in of.values()), *(cell(row) for cell in columns.values())]
        for row in measured
    ]
    return markdown_table([*of, *columns], rows)


def _said(value: int) -> str:
    return MODES[value] if isinstance(value, bool) else str(value)


def _milliseconds(ways: Sequence[str]) -> Mapping[str, Callable[[Measurement], str]]:
    """Return table columns with the CPU milliseconds of a batch, by method."""

    def cell(row: Measurement, way: str) -> str:
        times = row["seconds"].get(way)
        return f"{1000 * estimate(times).median:.2f}" if times else "–"

    return {way: partial(cell, way=way) for way in ways}


def _milliseconds_of_a_tree(ways: Sequence[str]) -> Mapping[str, Callable[[Measurement], str]]:
    """Return table columns with the CPU milliseconds of a tree and their intervals, by method."""

    def cell(row: Measurement, way: str) -> str:
        times = row["seconds"].get(way)
        return estimate([1000 * t / row["batch"] for t in times]).shown(".3f") if times else "–"

    return {way: partial(cell, way=way) for way in ways}


def _ratios(pairs: Sequence[tuple[str, str]]) -> Mapping[str, Callable[[Measurement], str]]:
    """Return table columns with the ratio of two methods' times and its interval."""

    def cell(row: Measurement, pair: tuple[str, str]) -> str:
        # ratio takes any samples; these are times, not speeds.
        known = {*pair} <= row["seconds"].keys()
        return speed_ratio(row["seconds"], *pair).shown(".2f") if known else "–"

    return {" / ".join(pair): partial(cell, pair=pair) for pair in pairs}


main = as_command(fold)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
