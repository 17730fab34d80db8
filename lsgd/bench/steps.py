"""Whole training steps compared: `python -m lsgd.bench step` and `python -m lsgd.bench batchnorm`.

The report is Markdown, for a README as for a terminal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lsgd.batchnorm import RunningStatistics
from lsgd.bench import results
from lsgd.bench.bare import BareLoop
from lsgd.bench.loaders import finish, passes_of_step
from lsgd.bench.scripts import Timm, Torchvision, with_plain_batchnorm
from lsgd.bench.setting import Found, said_of, setting_of
from lsgd.bench.table import head, row, shown
from lsgd.bench.timing import Work, check_rounds, cost, estimate, measure, ratio
from lsgd.comm import Comm, open_comm
from lsgd.config import CommandLine
from lsgd.errors import Refused
from lsgd.inputs import Batch
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device
from lsgd.job.launcher import detect
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.sampler import Pass
from lsgd.train import train_step

OURS, BARE = "lsgd's step", "a bare loop"
SCRIPTS = {"torchvision's training step": Torchvision, "timm's training step": Timm}
FASTER = 1.15
"""At least so many times the images/s of each script."""
PER_WORKER, PLAIN = "per-worker BN", "plain BN"

Step = Callable[[int, list[Pass], Iterator[Batch]], None]
"""Makes a step of the run: its number, the passes, and the images and labels of each."""


@dataclass(frozen=True)
class Comparison:
    """What a step may cost against another way to make it."""

    name: str
    """The word on the command line."""
    about: str
    one: str
    other: str
    goal: float
    """At most so many times the other's time."""
    steps: Callable[[Recipe, Comm, torch.device], dict[str, Step]]
    """Both, ready to run."""
    scripts: Mapping[str, type[Torchvision]] = field(default_factory=dict)
    """What else is measured."""


def step_and_bare(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, Step]:
    """lsgd's step with its reducer, tally and guard, and the loop without."""
    return {OURS: _ours(Learner(recipe, comm, device)), BARE: BareLoop(recipe, device).step}


def with_either_batchnorm(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, Step]:
    """lsgd's step with statistics over each worker's images, and over all of a pass.

    Raises Refused if a pass has a single worker.
    """
    if recipe.pass_workers == 1:
        raise Refused(
            "workers_per_pass=1 leaves one worker in a pass, so that both are the same; write 2 or "
            "more"
        )
    plain = Learner(recipe, comm, device)
    with_plain_batchnorm(plain.model)
    plain.running = _KeptByLayers()
    return {PER_WORKER: _ours(Learner(recipe, comm, device)), PLAIN: _ours(plain)}


STEP = Comparison(
    name="step",
    about="""\
What does lsgd's training step cost? Against a loop written by hand in PyTorch: zero_grad, forward,
cross entropy and backward of each pass, fused SGD, with the same model, batch, passes, precision,
per-worker BN and deterministic kernels, and the same result; but without reducer, counts and guard
against what is not finite. Images are made up, and on the device already.

  python -m lsgd.bench step +recipe=fashion_bs1k
  python -m lsgd.bench step +recipe=bs256 workers_per_pass=8 precision=bfloat16 channels_last=true
""",
    one=OURS,
    other=BARE,
    goal=1.02,
    steps=step_and_bare,
    scripts=SCRIPTS,
)

BATCHNORM = Comparison(
    name="batchnorm",
    about="""\
What does it cost that workers do not share BN statistics? A whole training step of lsgd, against
the same step with nn.BatchNorm2d over all images of a pass. Images are made up, and on the device
already.

  python -m lsgd.bench batchnorm +recipe=fashion_resnet20 workers=8 workers_per_pass=8
  python -m lsgd.bench batchnorm +recipe=fashion_bs1k workers_per_pass=8
""",
    one=PER_WORKER,
    other=PLAIN,
    goal=1.05,
    steps=with_either_batchnorm,
)


def main(comparison: Comparison, argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = CommandLine(program=f"lsgd.bench {comparison.name}", about=comparison.about)
    line.usage = f"{line.usage} [--rounds N] [--steps N] [--out FOLDER]"
    line.add_argument("--rounds", type=int, default=30, help="how often each is measured (30)")
    line.add_argument("--steps", type=int, default=2, help="of each per round (2)")
    results.add_out(line, comparison.name)
    recipe, options = line.read(argv)
    check_rounds(options.rounds)
    if options.steps < 1:
        raise Refused(f"--steps {options.steps} is not possible; write 1 or more")
    with results.recording(comparison.name, line.prog, argv, options.out) as record:
        found = bench(comparison, recipe, rounds=options.rounds, steps=options.steps)
        record.end(found, report(comparison, found))


def bench(comparison: Comparison, recipe: Recipe, *, rounds: int, steps: int) -> Found:
    """All that is measured, as JSON can hold it."""
    comm, device = alone(recipe)
    found = setting_of(recipe, device) | {"rounds": rounds, "steps_per_round": steps}
    # The first step of the run again and again: its lr does not rise with what is measured.
    passes = passes_of_step(recipe, 0)
    batches = list(SyntheticInputs(recipe.data, seed=recipe.seed, device=device).train(passes))

    def work(step: Step) -> Work:
        def of_round(number: int) -> int:
            for _ in range(steps):
                step(0, passes, iter(batches))
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
    works = {name: work(step) for name, step in candidates.items()}
    speeds = measure(works, rounds, what=comparison.name)
    return found | {"images_per_second": speeds, "missing": missing}


def report(comparison: Comparison, found: Found) -> str:
    """What was found, in Markdown."""
    speeds, one, other = found["images_per_second"], comparison.one, comparison.other
    times = cost(speeds, one, other)
    scripts = [name for name in speeds if name not in (one, other)]
    lines = [
        *said_of(found),
        f"{found['rounds']} rounds of {found['steps_per_round']} steps; medians (and intervals of "
        "95 %)",
        "",
        *head("a training step", "images/s", f"times the time of {other}"),
        row(one, shown(estimate(speeds[one]), ".0f"), shown(times, ".3f")),
        row(other, shown(estimate(speeds[other]), ".0f"), "1"),
        *(
            row(name, shown(estimate(speeds[name]), ".0f"), shown(cost(speeds, name, other), ".3f"))
            for name in scripts
        ),
        "",
        f"- {one}, at most {comparison.goal:g} times the time of {other}: "
        f"{times.within(comparison.goal)}, {shown(times, '.3f')}",
    ]
    for name in scripts:
        faster = ratio(speeds, one, name)
        lines.append(
            f"- {one}, at least {FASTER:g} times as fast as {name} (plain BN, an update for each "
            f"pass): {faster.against(FASTER)}, {shown(faster, '.3f')}"
        )
    lines += [f"- {name} is not measured: {why}" for name, why in found["missing"].items()]
    return "\n".join(lines)


def alone(recipe: Recipe) -> tuple[Comm, torch.device]:
    """The device, and the one process that is measured; as in training it has all cores' threads.

    Raises Refused if a launcher started several.
    """
    if (launch := detect()).world_size > 1:
        raise Refused(
            f"{launch.launcher} started {launch.world_size} processes, and the steps of one are "
            "measured; start it without"
        )
    device = pick_device(recipe.device)
    return open_comm("single", device=device, timeout=recipe.comm.timeout), device


class _KeptByLayers(RunningStatistics):
    """PyTorch's layers keep their running statistics themselves: here is nothing to do."""

    def __init__(self) -> None:
        pass

    def start_pass(self, workers: int) -> None:
        """See RunningStatistics."""

    def end_step(self, active_workers: int) -> None:
        """See RunningStatistics."""


def _ours(learner: Learner) -> Step:
    return lambda step, passes, batches: train_step(learner, step, passes, batches)
