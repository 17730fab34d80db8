"""Benchmark of the cost of padding: `python -m benchmarks.padding`.

The report is Markdown, for a README as for a terminal.
"""

import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.command import as_command
from benchmarks.figure import write_figure
from benchmarks.padded_steps import LR, PaddedSentences, weights
from benchmarks.tensorflow_job import open_tensorflow, save_examples
from lsgd.bench import results
from lsgd.bench.job import Job, open_job, parse_numbers
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    environment_facts,
    machine_lines,
    record_refusal,
)
from lsgd.bench.timing import TimedWork, estimate, measure
from lsgd.errors import UsageError
from lsgd.job.command import integer_from
from lsgd.models.tagger import Tagger
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.recipe.settings import PADDINGS
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

ABOUT = """\
What does padding cost? Training steps of a BiLSTM tagger on the sentences of a recipe, padded

  global        to the longest sentence of all, as a graph of fixed shapes needs it
  batch         to the longest sentence of the batch
  bucket        the same, on batches of sentences of like length
  packed        to the longest of the batch, and the LSTM leaves the padding out (torch alone)
  per_sentence  not at all: each sentence alone, the gradients summed

by torch eagerly, by torch.compile with static shapes and with dynamic ones, and by TensorFlow 2
with a graph of static shapes (global) or of any length (the others), with Keras' LSTM and with its
operation for a whole LSTM (BlockLSTM). All have the same weights at first and, bucket apart, the
same batches; each has one thread, plain SGD without dropout, and updates only the rows of the
embedding that a batch has. TensorFlow is installed in an environment of its own, once.

All take turns, so that every round measures each once, on the same steps; medians of the rounds
count. The round before the first has what happens once: tracing and compiling. words/CPU-s is the
figure for a machine that does other things too. torch.compile cannot read nn.LSTM, which splits the
network into several graphs; with static shapes it compiles 8 times, and then runs eagerly.

  python -m benchmarks.padding +recipe=conll_bilstm
  … --batches 16 --sentences 160      shorter: minutes, and not a quarter of an hour
"""

EAGER, STATIC, DYNAMIC = "torch", "torch.compile, static", "torch.compile, dynamic"
KERAS, BLOCK = "TensorFlow, Keras", "TensorFlow, BlockLSTM"
COMPILE: dict[str, bool | None] = {EAGER: None, STATIC: False, DYNAMIC: True}
LSTMS = {KERAS: "keras", BLOCK: "block"}
COMPILED_PADDINGS = ("global", "batch", "bucket")
TENSORFLOW_PADDINGS = ("global", "batch", "bucket", "per_sentence")


@dataclass(frozen=True)
class Candidate:
    """A network implementation, a padding and a batch size."""

    system: str
    padding: str
    batch: int

    @property
    def name(self) -> str:
        """The name of the candidate in jobs and results."""
        return f"{self.system}, {self.padding}, {self.batch}"


def padding(argv: Sequence[str]) -> None:
    """Measure the requested paddings, print the report and save it in --out."""
    line = RecipeParser(program="benchmarks.padding", about=ABOUT)
    line.usage = (
        f"{line.usage} [--batches N,…] [--sentences N] [--rounds N] [--limit SECONDS] "
        "[--out FOLDER]"
    )
    line.add_argument("--batches", default="16,64", help="sentences of a step (16,64)")
    line.add_argument(
        "--sentences", type=integer_from(1), default=640, help="of each in a round (640)"
    )
    results.add_options(line, "padding", rounds=7, limit=600)
    recipe, options = line.parse(argv)
    check_not_launched("this benchmark starts its own")
    remedy = "write +recipe=conll_bilstm"
    check_supported(recipe, "benchmarks.padding", remedy, workloads=("tagging",))
    if recipe.model.name != "bilstm":
        raise UsageError(f"model={recipe.model.name} is there in torch alone; write model=bilstm")
    batches = parse_numbers("--batches", options.batches, least=1)
    result = environment_facts(torch.device("cpu")) | {
        "recipe": recipe.name,
        "dataset": recipe.data.name,
        "rounds": options.rounds,
        "sentences": options.sentences,
    }
    with results.open_record("padding", line.prog, argv, options.out) as record:
        bench(result, recipe, batches, options)
        if not result["candidates"]:
            raise UsageError("; ".join(result["missing"].values()))
        write_figure(record, result, draw)
        record.write_report(result, report(result))


def bench(result: Result, recipe: Recipe, batches: Sequence[int], options: Namespace) -> None:
    """Measure all candidates, and store their measurements in the result.

    Facts about each go into `candidates`, its words/s into `speeds`, and the reason for each that
    cannot be measured into `missing`.
    """
    result |= {"candidates": {}, "missing": {}}
    wasted = {
        (padding, batch): PaddedSentences(recipe, padding, batch).wasted_share()
        for padding, batch in product(PADDINGS, batches)
    }
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="lsgd-bench-")))
        works: dict[str, TimedWork] = {}
        done: dict[str, list[dict[str, Any]]] = {}
        for system in (EAGER, STATIC, DYNAMIC, KERAS, BLOCK):
            for candidate, job in _prepared(
                system, recipe, batches, options, running, folder, result
            ):
                steps = _steps(candidate.batch, options.sentences)
                done[candidate.name] = []
                works[candidate.name] = _work(job, candidate.name, steps, done[candidate.name])
                result["candidates"][candidate.name] = vars(candidate) | {
                    "steps": steps,
                    "wasted": wasted[candidate.padding, candidate.batch],
                }
        print(f"{options.rounds} rounds of {len(works)} candidates", flush=True)
        if works:
            result["speeds"] = measure(works, options.rounds, what="padding")
    for name, rounds in done.items():
        result["candidates"][name] |= _facts(rounds)


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    lines = [
        f"{result['recipe']}: a BiLSTM tagger on {result['dataset']}, one thread, SGD at {LR}",
        *machine_lines(result),
        f"{result['rounds']} rounds of {result['sentences']} sentences; medians (and intervals of "
        "95 %)",
        "",
    ]
    head = [
        "network",
        "padding",
        "batch",
        "words/s",
        "words/CPU-s",
        "ms a step",
        "wasted cells, %",
        "graphs",
        "of them later",
        "once, s",
    ]
    rows = [
        [
            of["system"],
            of["padding"],
            str(of["batch"]),
            estimate(result["speeds"][name]).shown(".0f"),
            estimate(of["words_per_cpu_second"]).shown(".0f"),
            f"{of['milliseconds']:.1f}",
            f"{100 * of['wasted']:.1f}",
            str(of["graphs"]) if of["graphs"] else "–",
            str(of["graphs"] - of["first_graphs"]) if of["graphs"] else "–",
            f"{of['once_seconds']:.1f}",
        ]
        for name, of in result["candidates"].items()
    ]
    lines += [markdown_table(head, rows), ""]
    if "import_seconds" in result:
        lines.append(f"- importing TensorFlow took {result['import_seconds']:.1f} s")
    if (difference := _difference(result)) is not None:
        lines.append(f"- TensorFlow's losses are those of torch within {difference:.1g}")
    lines += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join(lines).rstrip()


def draw(result: Result) -> dict[str, bytes]:
    """Return the figure's files by name; raise ImportError without matplotlib."""
    from benchmarks.plots import padding_bars

    speeds = {
        (of["batch"], of["system"], of["padding"]): estimate(of["words_per_cpu_second"])
        for of in result["candidates"].values()
    }
    return padding_bars(speeds, PADDINGS)


def _prepared(
    system: str,
    recipe: Recipe,
    batches: Sequence[int],
    options: Namespace,
    running: ExitStack,
    folder: Path,
    result: Result,
) -> Iterator[tuple[Candidate, Job]]:
    """Yield the prepared candidates of a system, each with its job.

    If one cannot be prepared, the reason goes into `missing` of the result.
    """
    paddings = {EAGER: PADDINGS, KERAS: TENSORFLOW_PADDINGS, BLOCK: TENSORFLOW_PADDINGS}.get(
        system, COMPILED_PADDINGS
    )
    job: Job | None = None
    with record_refusal(result, system):
        for batch, padding in product(batches, paddings):
            candidate = Candidate(system, padding, batch)
            if system in LSTMS:
                job = job or running.enter_context(open_tensorflow(threads=1, limit=options.limit))
                facts = job.prepare(_in_tensorflow(candidate, recipe, options.sentences, folder))
                result |= {"import_seconds": facts["import_seconds"]}
                result["versions"]["tensorflow"] = facts["tensorflow"]
            else:
                # Each compiled network has a process to itself, so that only its graphs are
                # counted.
                if not job or system != EAGER:
                    job = running.enter_context(
                        open_job(
                            "benchmarks.padded_steps",
                            "single",
                            1,
                            options.words,
                            limit=options.limit,
                        )
                    )
                job.prepare(
                    {
                        "name": candidate.name,
                        "padding": padding,
                        "batch": batch,
                        "steps": _steps(batch, options.sentences),
                        "compile": COMPILE[system],
                    }
                )
            yield candidate, job


def _in_tensorflow(
    candidate: Candidate, recipe: Recipe, sentences: int, folder: Path
) -> dict[str, Any]:
    """Return the request that prepares a candidate in TensorFlow.

    Writes its examples to a file of this folder.
    """
    padded = PaddedSentences(recipe, candidate.padding, candidate.batch)
    workload, train = padded.workload, padded.sentences
    batches = padded.batches()[: _steps(candidate.batch, sentences)]
    apart = candidate.padding == "per_sentence"
    network = workload.network()
    assert isinstance(network, Tagger)
    file = folder / f"{candidate.padding}-{candidate.batch}.npz"
    if not file.exists():
        save_examples(
            file,
            {
                "words": train.words,
                "tags": train.tags,
                "offsets": np.append(train.begins, len(train.words)),
            },
            [[[each] for each in batch] if apart else [batch] for batch in batches],
            weights(network),
        )
    return {
        "name": candidate.name,
        "file": str(file),
        "length": int(train.lengths.max()) if candidate.padding == "global" else None,
        "lstm": LSTMS[candidate.system],
        "dtype": "float32",
        "lr": LR,
    }


def _steps(batch: int, sentences: int) -> int:
    return -(-sentences // batch)


def _work(job: Job, name: str, steps: int, rounds: list[dict[str, Any]]) -> TimedWork:
    def work(number: int) -> int:
        rounds.append(job.run(name, steps))
        return int(rounds[-1]["words"])

    return work


def _facts(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts about a candidate from its rounds, the first of which is a warm-up."""
    first, *others = rounds
    usual = statistics.median(sum(each["seconds"]) for each in others)
    return {
        "words": first["words"],
        "cells": first["cells"],
        "words_per_cpu_second": [each["words"] / sum(each["cpu_seconds"]) for each in others],
        "milliseconds": 1000 * statistics.median(s for each in others for s in each["seconds"]),
        "once_seconds": max(0.0, sum(first["seconds"]) - usual),
        "first_graphs": first["graphs"][0],
        "graphs": others[-1]["graphs"][-1],
        "losses": first["losses"][:10],
    }


def _difference(result: Result) -> float | None:
    """Return the largest difference of TensorFlow's first losses to torch's.

    Returns None if no setting was measured with both.
    """
    losses = {
        (of["system"], of["padding"], of["batch"]): of["losses"]
        for of in result["candidates"].values()
    }
    differences = [
        abs(theirs - ours)
        for (system, *way), values in losses.items()
        if system in LSTMS and (EAGER, *way) in losses
        for theirs, ours in zip(values, losses[EAGER, *way], strict=True)
    ]
    return max(differences, default=None)


main = as_command(padding)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
