"""What more processes bring on this machine: `python -m lsgd.bench scaling`.

The report is Markdown, for a README as for a terminal.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from lsgd.bench import results
from lsgd.bench.job import Job, numbers, open_job
from lsgd.bench.setting import Found, said_of, setting_of
from lsgd.bench.table import head, row, shown
from lsgd.bench.timing import Rounds, Work, check_rounds, estimate, measure, ratio
from lsgd.comm import Comm
from lsgd.config import CommandLine
from lsgd.errors import Refused
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.recipe import Recipe, check_world_size
from lsgd.train import train_step

ABOUT = """\
What do more processes bring on this machine? Training steps of a recipe, on made-up images that
are on the device already, with

  strong scaling    the recipe as it is, its workers shared by more and more processes
  weak scaling      as many workers for each process as the recipe has in all

in images/s, and the efficiency against one process: the speed over that of one process, divided by
the number of processes. The jobs are all up at once and take turns, so that every round measures
each once; what is compared is the ratio within a round. A processor's cores are shared out among
the processes of a job, unless OMP_NUM_THREADS says how many threads each has.

  python -m lsgd.bench scaling +recipe=fashion_bs1k --np 1,2,4
"""

STRONG, WEAK = "strong", "weak"


class Steps:
    """See Works. The setting is strong or weak."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.works: Mapping[str, Callable[[int], None]] = {}

    def open(self, setting: str) -> dict[str, Any]:
        """Make the model; raises Refused if there are more processes than workers."""
        self.works = {}
        factor = self.comm.world_size if setting == WEAK else 1
        recipe = replace(self.recipe, workers=factor * self.recipe.workers)
        check_world_size(recipe, self.comm.world_size)
        # An epoch of one step, since what is measured is made up.
        recipe = replace(
            recipe, data=replace(recipe.data, train_examples=recipe.batch_size), tail="drop"
        )
        learner = Learner(recipe, self.comm, self.device)
        inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=self.device)
        [passes] = learner.passes(0, [0])
        batches = list(inputs.train(passes))

        def steps(number: int) -> None:
            for _ in range(number):
                train_step(learner, 0, passes, iter(batches))

        steps(1)  # what is made at the first one is not what is measured
        self.works = {setting: steps}
        return {
            "over": self.comm.library,
            "threads": torch.get_num_threads(),
            "images": recipe.batch_size,
            "workers_per_pass": max(each.workers for each in passes),
        }


def main(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = CommandLine(program="lsgd.bench scaling", about=ABOUT)
    line.usage = (
        f"{line.usage} [--np N,…] [--rounds N] [--steps N] [--limit SECONDS] [--out FOLDER]"
    )
    line.add_argument("--np", default="1,2,4", help="processes; 1 is what they are compared with")
    line.add_argument("--rounds", type=int, default=8, help="how often each is measured (8)")
    line.add_argument("--steps", type=int, default=2, help="of a job in a round (2)")
    line.add_argument(
        "--limit", type=float, default=300, help="seconds after which a round is given up (300)"
    )
    results.add_out(line, "scaling")
    recipe, options = line.read(argv)
    processes = numbers("--np", options.np, least=1)
    check_rounds(options.rounds)
    for option, value in (("--steps", options.steps), ("--limit", options.limit)):
        if value <= 0:
            raise Refused(f"{option} {value:g} is not possible; write a number above 0")
    found = setting_of(recipe, pick_device(recipe.device)) | {
        "rounds": options.rounds,
        "steps_per_round": options.steps,
    }
    with results.recording("scaling", line.prog, argv, options.out) as record:
        bench(found, sorted({1, *processes}), options, record)
        if not found["speeds"]:
            raise Refused("; ".join(found["missing"].values()))
        record.end(found, report(found))


def bench(
    found: Found, processes: Sequence[int], options: Namespace, record: results.Record
) -> None:
    """Of each kind of scaling, what each job is and its images/s, and why what is not measured."""
    found |= {"jobs": {}, "speeds": {}, "missing": {}}
    with ExitStack() as running:
        jobs: dict[int, Job] = {}
        for number in processes:
            with _noted(found, f"{number} processes"):
                # Waiting jobs of torch.distributed leave the cores to the one that works.
                opening = open_job("steps", "torch", number, options.words, limit=options.limit)
                jobs[number] = running.enter_context(opening)
        for kind in (STRONG, WEAK):
            facts = {}
            for number, job in jobs.items():
                with _noted(found, f"{kind} scaling on {number} processes"):
                    facts[str(number)] = job.ask("open", kind)
            if "1" not in facts:
                continue  # which all are compared with
            print(f"{kind} scaling, {options.rounds} rounds", flush=True)
            works = {
                number: _work(jobs[int(number)], kind, options.steps, each["images"])
                for number, each in facts.items()
            }
            with _noted(found, f"{kind} scaling"):
                speeds = measure(works, options.rounds, what=f"{kind} scaling")
                found["jobs"][kind], found["speeds"][kind] = facts, speeds
            record.keep(found)


@contextmanager
def _noted(found: Found, what: str) -> Iterator[None]:
    """What is refused inside is missing, and stops nothing else."""
    try:
        yield
    except Refused as refusal:
        found["missing"][what] = str(refusal)


def report(found: Found) -> str:
    """What was found, in Markdown."""
    lines = [
        *said_of(found),
        f"{found['rounds']} rounds; medians (and intervals of 95 %)",
        "",
    ]
    for kind, speeds in found["speeds"].items():
        lines += _table(kind, speeds, found["jobs"][kind], found["machine"]["cores"])
    lines += [f"- {what} is not measured: {why}" for what, why in found["missing"].items()]
    return "\n".join(lines).rstrip()


def _table(kind: str, speeds: Rounds, jobs: dict[str, Any], cores: int) -> list[str]:
    lines = head(
        f"{kind} scaling: processes",
        "cores each",
        "images a step",
        "workers a pass",
        "images/s",
        "efficiency",
    )
    for number, values in speeds.items():
        times = ratio(speeds, number, "1")
        each = int(number)
        low, middle, high = (100 * x / each for x in (times.low, times.median, times.high))
        lines.append(
            row(
                f"{number}, {jobs[number]['over']}",
                f"{cores / each:g}, threads: {jobs[number]['threads']}",
                str(jobs[number]["images"]),
                str(jobs[number]["workers_per_pass"]),
                shown(estimate(values), ".0f"),
                f"{middle:.0f} % ({low:.0f} to {high:.0f})" if each > 1 else "100 %",
            )
        )
    return [*lines, ""]


def _work(job: Job, kind: str, steps: int, images: int) -> Work:
    def work(number: int) -> int:
        job.ask(kind, steps)
        return steps * images

    return work
