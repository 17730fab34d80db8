"""Comparison of whole training steps, shared by benchmarks.step, batchnorm and lars.

The report is Markdown, for a README as for a terminal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from benchmarks.scripts import TorchvisionStep
from lsgd.bench import results
from lsgd.bench.loaders import micro_batches_of_step
from lsgd.bench.setting import Result, check_not_launched, recipe_facts, recipe_lines
from lsgd.bench.timing import TimedWork, estimate, measure, speed_ratio, time_ratio
from lsgd.comm import Comm, open_comm
from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device, synchronize
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.tables import markdown_table

FASTER = 1.15
"""The smallest allowed ratio of lsgd's images/s to those of each script."""

StepFunction = Callable[[StepTask, Iterator[Batch]], None]
"""A function that makes one training step from a StepTask and its micro-batches' inputs."""


@dataclass(frozen=True)
class Comparison:
    """Two implementations of a training step, and the allowed ratio of their times."""

    name: str
    """The name of the command's module in benchmarks/."""
    about: str
    """The text of --help."""
    measured_step: str
    baseline_step: str
    max_time_ratio: float
    """The largest allowed ratio of the step time of `one` to that of `other`."""
    make_steps: Callable[[Recipe, Comm, torch.device], dict[str, StepFunction]]
    """A function that builds both steps and any others to list beside them, by candidate name."""
    scripts: Mapping[str, type[TorchvisionStep]] = field(default_factory=dict)
    """The training scripts to measure as well, by name."""
    peers: tuple[str, ...] = ()
    """Other packages whose versions are recorded."""


def compare(comparison: Comparison, argv: Sequence[str]) -> None:
    """Measure the steps that the command line selects, print the report and save it in --out."""
    line = RecipeParser(program=f"benchmarks.{comparison.name}", about=comparison.about)
    line.usage = f"{line.usage} [--rounds N] [--steps N] [--out FOLDER]"
    line.add_argument("--steps", type=int, default=2, help="of each per round (2)")
    results.add_options(line, comparison.name, rounds=30)
    recipe, options = line.parse(argv)
    if options.steps < 1:
        raise UsageError(f"--steps {options.steps} is not possible; write 1 or more")
    with results.open_record(comparison.name, line.prog, argv, options.out) as record:
        result = bench(comparison, recipe, rounds=options.rounds, steps=options.steps)
        record.write_report(result, report(comparison, result))


def bench(comparison: Comparison, recipe: Recipe, *, rounds: int, steps: int) -> Result:
    """Return the setting and the `images_per_second` of each candidate.

    `missing` has the reason for each script that cannot run.
    """
    comm, device = open_single(recipe)
    result = recipe_facts(recipe, device, *comparison.peers) | {
        "rounds": rounds,
        "steps_per_round": steps,
    }
    # Repeating the first step of the run keeps the lr constant during the measurement.
    task = StepTask(0, recipe.batch_size, recipe.workers, micro_batches_of_step(recipe, 0))
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    batches = list(inputs.train(task.micro_batches))

    def timed_work(step: StepFunction) -> TimedWork:
        def of_round(number: int) -> int:
            for _ in range(steps):
                step(task, iter(batches))
            synchronize(device)
            return steps * recipe.batch_size

        return of_round

    candidates = comparison.make_steps(recipe, comm, device)
    missing: dict[str, str] = {}
    for name, script in comparison.scripts.items():
        try:
            candidates[name] = script(recipe, device).step
        except UsageError as refusal:
            missing[name] = str(refusal)
    works = {name: timed_work(step) for name, step in candidates.items()}
    speeds = measure(works, rounds, what=comparison.name)
    return result | {"images_per_second": speeds, "missing": missing}


def report(comparison: Comparison, result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    speeds, one, other = (
        result["images_per_second"],
        comparison.measured_step,
        comparison.baseline_step,
    )
    times = time_ratio(speeds, one, other)
    beside = [name for name in speeds if name not in (one, other)]
    rows = [
        [
            name,
            estimate(speeds[name]).shown(".0f"),
            "1" if name == other else time_ratio(speeds, name, other).shown(".3f"),
        ]
        for name in (one, other, *beside)
    ]
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds of {result['steps_per_round']} steps; medians (and intervals "
        "of 95 %)",
        "",
        markdown_table(["a training step", "images/s", f"times the time of {other}"], rows),
        "",
        f"- {one}, at most {comparison.max_time_ratio:g} times the time of {other}: "
        f"{times.compare_at_most(comparison.max_time_ratio)}, {times.shown('.3f')}",
    ]
    for name in beside:
        if name not in comparison.scripts:
            continue
        faster = speed_ratio(speeds, one, name)
        lines.append(
            f"- {one}, at least {FASTER:g} times as fast as {name} (plain BN, an update for each "
            f"pass): {faster.compare_at_least(FASTER)}, {faster.shown('.3f')}"
        )
    lines += [f"- {name} is not measured: {why}" for name, why in result["missing"].items()]
    return "\n".join(lines)


def open_single(recipe: Recipe) -> tuple[Comm, torch.device]:
    """Return the communicator of the single process to measure, and its device.

    The process has the threads of all cores, as in training. Raises UsageError if a launcher
    started several processes.
    """
    check_not_launched("the steps of one are measured")
    device = pick_device(recipe.device)
    return open_comm(replace(recipe.comm, library="single"), device), device


def step_of(learner: Learner) -> StepFunction:
    """Return lsgd's training step of this learner."""
    return partial(train_step, learner)
