"""Whole training steps compared: what benchmarks.step, batchnorm and lars have in common.

The report is Markdown, for a README as for a terminal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from benchmarks.scripts import Torchvision
from lsgd.bench import results
from lsgd.bench.loaders import finish, passes_of_step
from lsgd.bench.setting import Result, check_not_launched, recipe_lines, setting_of
from lsgd.bench.timing import TimedWork, check_rounds, cost, estimate, measure, ratio
from lsgd.comm import Comm, open_comm
from lsgd.config import RecipeParser
from lsgd.errors import Refused
from lsgd.inputs import Batch
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.strategy import Task
from lsgd.tables import markdown

FASTER = 1.15
"""At least how many times the images/s of each script lsgd's step is to make."""

StepFunction = Callable[[Task, Iterator[Batch]], None]
"""A function that makes a step of the run from its task and the batches of its passes."""


@dataclass(frozen=True)
class Comparison:
    """A way to make a step, and what it may cost compared with another way."""

    name: str
    """The module of benchmarks/ that is the command."""
    about: str
    """The text of --help."""
    one: str
    other: str
    goal: float
    """At most how many times the other's time the one may take."""
    steps: Callable[[Recipe, Comm, torch.device], dict[str, StepFunction]]
    """A function that makes both, ready to run; and what else is to stand beside them."""
    scripts: Mapping[str, type[Torchvision]] = field(default_factory=dict)
    """The training scripts that are measured, too, by name."""
    peers: tuple[str, ...] = ()
    """Other packages whose versions matter."""


def compare(comparison: Comparison, argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = RecipeParser(program=f"benchmarks.{comparison.name}", about=comparison.about)
    line.usage = f"{line.usage} [--rounds N] [--steps N] [--out FOLDER]"
    line.add_argument("--rounds", type=int, default=30, help="how often each is measured (30)")
    line.add_argument("--steps", type=int, default=2, help="of each per round (2)")
    results.add_out(line, comparison.name)
    recipe, options = line.read(argv)
    check_rounds(options.rounds)
    if options.steps < 1:
        raise Refused(f"--steps {options.steps} is not possible; write 1 or more")
    with results.recording(comparison.name, line.prog, argv, options.out) as record:
        result = bench(comparison, recipe, rounds=options.rounds, steps=options.steps)
        record.end(result, report(comparison, result))


def bench(comparison: Comparison, recipe: Recipe, *, rounds: int, steps: int) -> Result:
    """The setting, and `images_per_second` of each candidate; `missing` says why one has none."""
    comm, device = open_single(recipe)
    result = setting_of(recipe, device, *comparison.peers) | {
        "rounds": rounds,
        "steps_per_round": steps,
    }
    # The first step of the run again and again: its lr does not rise with what is measured.
    task = Task(0, recipe.batch_size, recipe.workers, passes_of_step(recipe, 0))
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    batches = list(inputs.train(task.passes))

    def timed_work(step: StepFunction) -> TimedWork:
        def of_round(number: int) -> int:
            for _ in range(steps):
                step(task, iter(batches))
            finish(device)
            return steps * recipe.batch_size

        return of_round

    candidates = comparison.steps(recipe, comm, device)
    missing: dict[str, str] = {}
    for name, script in comparison.scripts.items():
        try:
            candidates[name] = script(recipe, device).step
        except Refused as refusal:
            missing[name] = str(refusal)
    works = {name: timed_work(step) for name, step in candidates.items()}
    speeds = measure(works, rounds, what=comparison.name)
    return result | {"images_per_second": speeds, "missing": missing}


def report(comparison: Comparison, result: Result) -> str:
    """The result as a report in Markdown."""
    speeds, one, other = result["images_per_second"], comparison.one, comparison.other
    times = cost(speeds, one, other)
    beside = [name for name in speeds if name not in (one, other)]
    rows = [
        [
            name,
            estimate(speeds[name]).shown(".0f"),
            "1" if name == other else cost(speeds, name, other).shown(".3f"),
        ]
        for name in (one, other, *beside)
    ]
    lines = [
        *recipe_lines(result),
        f"{result['rounds']} rounds of {result['steps_per_round']} steps; medians (and intervals "
        "of 95 %)",
        "",
        markdown(["a training step", "images/s", f"times the time of {other}"], rows),
        "",
        f"- {one}, at most {comparison.goal:g} times the time of {other}: "
        f"{times.within(comparison.goal)}, {times.shown('.3f')}",
    ]
    for name in beside:
        if name not in comparison.scripts:
            continue
        faster = ratio(speeds, one, name)
        lines.append(
            f"- {one}, at least {FASTER:g} times as fast as {name} (plain BN, an update for each "
            f"pass): {faster.against(FASTER)}, {faster.shown('.3f')}"
        )
    lines += [f"- {name} is not measured: {why}" for name, why in result["missing"].items()]
    return "\n".join(lines)


def open_single(recipe: Recipe) -> tuple[Comm, torch.device]:
    """The one process that is measured, with the threads of all cores as in training; its device.

    Raises Refused if a launcher started several.
    """
    check_not_launched("the steps of one are measured")
    device = pick_device(recipe.device)
    return open_comm(replace(recipe.comm, library="single"), device), device


def step_of(learner: Learner) -> StepFunction:
    """lsgd's step with this learner."""
    return partial(train_step, learner)
