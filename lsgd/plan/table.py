"""The report of a plan as Markdown, with tables of times and constants, and the files of --out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from shlex import join

from lsgd.errors import UsageError
from lsgd.files import write_files
from lsgd.installation import install_command
from lsgd.plan import paper
from lsgd.plan.hardware import Constant
from lsgd.plan.network import MAX_WAIT_SHARE, min_required_gbits, required_gbits
from lsgd.plan.start import start_line
from lsgd.plan.step import ModelledCluster, StepTime, last_micro_batch_images
from lsgd.recipe import Recipe
from lsgd.tables import markdown_table

MOST = 65536
"""The largest number of GPUs in the tables, unless more are planned."""
FIGURE_7 = 352
"""The largest number of GPUs in the paper."""


@dataclass(frozen=True)
class RunEstimate:
    """The estimated time of a recipe's step, epoch and run on some number of GPUs."""

    step: StepTime
    efficiency: float
    epoch: float | None
    """The seconds of an epoch's steps; None if the whole dataset is less than one step."""
    hours: float | None
    """The hours of the steps of all epochs; None if `epoch` is None."""

    @property
    def bottleneck(self) -> str:
        """The name of the step's largest part, or `dataset` if that is less than one step."""
        return self.step.bottleneck if self.epoch is not None else "dataset"


def estimate_run(machine: ModelledCluster, recipe: Recipe, gpus: int) -> RunEstimate:
    """Estimate the time of a recipe's step, epoch and run on `gpus` GPUs."""
    step = machine.step(recipe, gpus)
    epoch = recipe.steps_per_epoch * step.seconds or None
    return RunEstimate(
        step, machine.efficiency(step), epoch, epoch and recipe.epochs * epoch / 3600
    )


def estimate_one_worker_per_gpu(machine: ModelledCluster, recipe: Recipe, gpus: int) -> RunEstimate:
    """Estimate the time of a recipe with one worker on each of `gpus` GPUs.

    Figures 7 and 8 of the paper scale so.
    """
    return estimate_run(machine, replace(recipe, workers=gpus), gpus)


def gpu_counts(gpus_per_server: int, planned: int) -> list[int]:
    """Return the GPU counts of a plan's tables: a server's doubled to 64k, 352, and `planned`.

    352 is the largest count in the paper's figure 7.
    """
    doubled = {gpus_per_server << i for i in range(17)}
    shown = doubled | ({FIGURE_7} if FIGURE_7 % gpus_per_server == 0 else set())
    return sorted({gpus for gpus in shown if gpus <= MOST} | {planned})


def report(
    machine: ModelledCluster,
    recipe: Recipe,
    nodes: int,
    fixed: Sequence[RunEstimate],
    growing: Sequence[RunEstimate],
    *,
    memory: str,
    is_paper: bool,
) -> str:
    """Format the estimates of a run and the model's constants as a Markdown report.

    `fixed` and `growing` are the rows of its two tables; `memory` is a sentence on the memory of a
    step.
    """
    gpus = nodes * machine.gpus_per_server
    run = next(row for row in fixed if row.step.gpus == gpus)
    sections = [
        f"{recipe.summary()}\n{nodes} servers x {machine.gpus_per_server} GPUs, "
        f"{machine.hardware.name}",
        _answer(run, recipe),
        _network(machine, recipe, gpus),
        memory,
        f"Images to read and decode: {run.step.images_per_second / nodes:,.0f}/s on each "
        "server, which the model assumes; python -m lsgd.bench inputs measures it.",
        *([start_line(nodes, gpus)] if gpus > 1 else []),
        f"This run, {recipe.workers} workers on any number of GPUs:",
        _rows(fixed),
        f"One worker of {recipe.worker_batch} images on each GPU, a minibatch that grows with "
        "them (figures 7 and 8 of the paper; speed alone: its error rises from 16k images on, and "
        "beyond 64k training diverges):",
        _rows(growing),
        *filter(None, [recipe.describe_evaluations()]),
        "Hours are those of the training steps, without evaluations and checkpoints. Efficiency "
        "is images per second and GPU, as a share of the measured ones. The bottleneck takes "
        "most of a step; `workers`: some GPUs would have no worker, which lsgd refuses; "
        "`dataset`: it has fewer images than one step.",
        constants(machine),
    ]
    if is_paper:
        sections += [paper.HOW_FAR_OFF]
    return "\n\n".join(sections)


def _answer(run: RunEstimate, recipe: Recipe) -> str:
    step = run.step
    shares = {part: seconds / step.seconds for part, seconds in step.parts.items()}
    rest = sorted(
        (part for part in shares if part != run.bottleneck and shares[part] >= 0.0005),
        key=lambda part: -shares[part],
    )
    others = ", ".join(f"{part} {shares[part]:.1%}" for part in rest) or "nothing else visible"
    assert run.epoch is not None
    assert run.hours is not None
    return (
        f"**{duration(step.seconds)} per step, {duration(run.epoch)} per epoch, "
        f"{run_time(run.hours)} for {recipe.epochs} epochs; {step.images_per_second:,.0f} "
        f"images/s, efficiency {run.efficiency:.0%}.**\n"
        f"Bottleneck: {run.bottleneck}, {shares[run.bottleneck]:.1%} of the step; beside it "
        f"{others}."
    )


def _network(machine: ModelledCluster, recipe: Recipe, gpus: int) -> str:
    servers = machine.servers(gpus)
    if servers == 1:
        return "Network needed: none, on one server."
    size = sum(piece.size for piece in machine.gradient_buckets)
    backward = machine.backward(last_micro_batch_images(recipe, gpus))
    least = min_required_gbits(size, servers, backward)
    bytes_alone = (
        f"the {size / 1e6:.1f} MB of a step's gradients, in {len(machine.gradient_buckets)} "
        f"all-reduces, alone take {_gbits(least)} for as long as the last backward pass, "
        f"{duration(backward)}"
    )
    enough = required_gbits(machine, recipe, gpus)
    if enough is None:
        return (
            f"Network needed: no bandwidth is enough, as latency alone takes more than "
            f"{MAX_WAIT_SHARE:.0%} of the step; {bytes_alone}."
        )
    return (
        f"Network needed: {_gbits(enough)} per server, with which a step waits "
        f"{MAX_WAIT_SHARE:.0%} of its time for all-reduce ({machine.hardware.network_bandwidth} "
        f"are available); {bytes_alone}."
    )


def _rows(rows: Sequence[RunEstimate]) -> str:
    cells = []
    for run in rows:
        step, (cause, share) = run.step, run.step.largest_overhead
        cells += [
            [
                f"{step.gpus}",
                f"{step.images}",
                duration(step.seconds),
                run.bottleneck,
                f"{run.efficiency:.1%}",
                "-" if run.epoch is None else duration(run.epoch),
                "-" if run.hours is None else run_time(run.hours),
                f"{cause} {share:.1%}",
            ]
        ]
    head = ["GPUs", "minibatch", "step", "bounds", "efficiency", "epoch", "run", "most lost to"]
    return markdown_table(head, cells)


def constants(machine: ModelledCluster) -> str:
    """Format the measured step and all constants of the model as a table with their sources."""
    measured = machine.measured
    backward = Constant(
        1000 * measured.backward_share * measured.seconds, "ms", measured.backward_source
    )
    step = Constant(
        1000 * measured.seconds,
        f"ms for {measured.images} images on each of {measured.gpus} GPUs",
        measured.source,
    )
    named = {
        "step to start from": step,
        "its backward pass": backward,
        **machine.hardware.constants(),
        "concurrent all-reduces": Constant(machine.concurrent, "", "--concurrent, else 1: assumed"),
    }
    rows = [[name, str(constant), constant.source] for name, constant in named.items()]
    table = markdown_table(["constant", "value", "source"], rows)
    algorithm = (
        f"All-reduces: {machine.hardware.allreduce}, {len(machine.gradient_buckets)} of them, as "
        "gradients become ready in a backward pass whose time is divided among the layers by "
        "their multiply-adds (assumed)."
    )
    return f"{table}\n\n{algorithm}"


def duration(seconds: float) -> str:
    """Format a duration in seconds with three digits, in milliseconds below one second.

    Durations of 1000 s and more are rounded to whole seconds. The unit is that of the rounded
    duration.

    >>> [duration(each) for each in (0.0997, 0.258, 0.9996, 59.7, 999.4, 999.7, 12_345)]
    ['99.7 ms', '258 ms', '1 s', '59.7 s', '999 s', '1000 s', '12345 s']
    """
    rounded = float(f"{seconds:.3g}")
    if rounded < 1:
        return f"{1000 * rounded:.3g} ms"
    return f"{rounded:.3g} s" if rounded < 1000 else f"{seconds:.0f} s"


def run_time(hours: float) -> str:
    """Format a duration in hours, or in minutes or seconds where it is short.

    Minutes are used below about two hours, and `duration` below one minute, of its three digits.

    >>> [run_time(seconds / 3600) for seconds in (59.7, 59.97, 60, 3576, 10_000)]
    ['59.7 s', '1.0 min', '1.0 min', '59.6 min', '2.8 h']
    """
    if hours >= 1.95:
        return f"{hours:.1f} h"
    seconds = 3600 * hours
    return f"{60 * hours:.1f} min" if float(f"{seconds:.3g}") >= 60 else duration(seconds)


def _gbits(value: float) -> str:
    return f"{value:.3g} Gbit/s"


Plotter = Callable[..., dict[str, bytes]]
"""A function that returns the contents of a plot's files, by file name."""


def plotter(name: str) -> Plotter:
    """Import the function of this name that plots a plan, which needs matplotlib.

    Raises UsageError if matplotlib cannot be imported.
    """
    try:
        plot: Plotter = getattr(import_module("lsgd.plan.plot"), name)
    except ImportError as error:
        raise UsageError(
            f"--out draws a plot, and matplotlib cannot be imported ({error}); "
            f"run {install_command('report')}"
        ) from None
    return plot


def write_plan(folder: Path, argv: Sequence[str], text: str, plots: dict[str, bytes]) -> None:
    """Write a plan's text, with its command line, and its plots as files into a folder.

    The text is in plan.md, which begins with the command line.
    """
    command = join(["python", "-m", "lsgd.plan", *argv])
    write_files(folder, {"plan.md": f"    {command}\n\n{text}\n".encode(), **plots})
