"""The command line `python -m lsgd.plan recipe=bs8k nodes=32 gpus=8`."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.files import create_output_folder
from lsgd.job.command import integer_from, positive_number, run_command
from lsgd.plan import measured_step, paper
from lsgd.plan.allreduce import ALGORITHMS
from lsgd.plan.gradients import gradient_buckets
from lsgd.plan.hardware import H200, PAPER, Hardware
from lsgd.plan.processes import check_plannable
from lsgd.plan.step import MeasuredStep, ModelledCluster
from lsgd.plan.strategy import plan_strategy
from lsgd.plan.table import (
    estimate_one_worker_per_gpu,
    estimate_run,
    gpu_counts,
    plotter,
    report,
    write_plan,
)
from lsgd.plan.target import find_points, target_report
from lsgd.plan.time_to_target import plan_to_target
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_constant_batch, check_supported, check_world_size
from lsgd.recipe.published_points import PublishedPoints
from lsgd.recipe_parser import RecipeParser

ABOUT = """\
Predict how long a run takes on a number of servers: its time, bottleneck and network bandwidth.

It prints the time per step and epoch, the hours, the efficiency, the bottleneck and the network
bandwidth needed, in a table over 8 to 65536 GPUs, and every constant with its source. --concurrent
is the number of all-reduces at the same time.

  python -m lsgd.plan recipe=bs8k nodes=32 gpus=8       the paper's machine, and the model's error
  … --preset h200 --images-per-second 3000              another, by the speed of one of its GPUs
  … --to 75.9 --price 2.5 --cheapest                    the minibatch that costs least to 75.9 %
  … --preset h200 --run runs/bs8k/20261120-152308-seed0 another, by a run on one of its GPUs
  … --network-gbits 25 --allreduce ring                 another network
  … --to 75.9                                           the minibatch that is fastest to 75.9 %
  … --out plan                                          table and plot in a new folder

  python -m lsgd.plan study=NAME                        the hours of all runs of a study, or search
  python -m lsgd.plan strategy --help                   parameter servers or all-reduce
  python -m lsgd.plan memory --help                     which micro-batches fit which GPUs
  python -m lsgd.plan bound --help                      the upper bound of a GPU's speed

The model: a step is that of one GPU, times the slowest of all GPUs, and the part of the
all-reduces that the backward pass does not hide. An all-reduce costs a latency for each message and
the bytes on the slowest link; it begins as soon as its layers are done, and follows the one before
it on the link. Two constants of the paper's machine, the latency of a message and the spread of the
GPUs' times, are calibrated on its reported numbers.

With --to the steps are not those of the recipe, but the steps that others needed to reach that
top-1 accuracy: the reference convergence points of MLPerf Training, in recipes/points/. Between
them minibatches are interpolated; outside of them the command gives no answer.
"""

PRESETS = {
    "paper": PAPER,
    "h200": H200,
}

Sizes = dict[str, int]


def main(argv: Sequence[str]) -> int:
    """Run the planning command, or one of its subcommands, and return the exit code."""
    if [*argv[:1]] == ["strategy"]:
        return run_command(lambda: plan_strategy(argv[1:]))
    if [*argv[:1]] == ["memory"]:
        # Imported late, so that a refused command need not wait for torch.
        from lsgd.plan.memory import plan_memory

        return run_command(lambda: plan_memory(argv[1:]))
    if [*argv[:1]] == ["bound"]:
        from lsgd.plan.bound import plan_bound

        return run_command(lambda: plan_bound(argv[1:]))
    for command in ("study", "search"):
        if any(re.match(rf"\+?{command}=", word) for word in argv):
            # It knows its runs and their launcher, and it imports this package.
            line = [sys.executable, "-m", f"lsgd.{command}", *argv, "--cost"]
            return subprocess.run(line).returncode
    return run_command(lambda: plan(argv))


def plan(argv: Sequence[str]) -> None:
    """Print estimates of a run on a planned cluster, and write them to the folder of --out."""
    sizes, overrides = split_cluster_size(argv)
    recipe, options = _command_line().parse(overrides)
    remedy = "a short run of it with profile=true shows where its time goes"
    check_supported(recipe, "lsgd.plan", remedy, workloads=("images",), strategies=("allreduce",))
    gpus = _gpus(sizes)
    check_plannable(recipe)
    points = _points(recipe, options)
    if points is None:
        check_world_size(recipe, gpus)
    else:
        check_constant_batch(recipe, "lsgd.plan --to")
    if recipe.has_phases and options.out:
        raise UsageError(
            "--out draws the steps of one size, and this run has phases of others; leave it out"
        )
    draw = plotter("draw" if points is None else "draw_arrivals") if options.out else None
    step = _measured(recipe, options)
    with create_output_folder(options.out) as folder:
        hardware = _hardware(options)
        sums = tuple(gradient_buckets(recipe, fused=hardware.fused))
        machine = ModelledCluster(hardware, sizes["gpus"], sums, step, options.concurrent)
        if points is None:
            text, drawn = _of_the_recipe(machine, recipe, sizes["nodes"], gpus)
        else:
            found = plan_to_target(machine, recipe, points.pruned, gpus)
            text = target_report(
                machine,
                recipe,
                points,
                found,
                nodes=sizes["nodes"],
                price=options.price,
                save=options.cheapest,
            )
            drawn = (points, found, recipe.data.train_examples)
        print(text)
        if folder and draw:
            write_plan(folder, argv, text, draw(*drawn))
    if folder:
        print(f"\nkept in {folder}")


def _of_the_recipe(
    machine: ModelledCluster, recipe: Recipe, nodes: int, gpus: int
) -> tuple[str, tuple[object, ...]]:
    """Estimate a recipe's run; return the report's text and the arguments of its plot."""
    from lsgd.plan.memory import memory_line

    if recipe.has_phases:
        from lsgd.plan.phases import largest_phase, phase_report, plan_phases

        planned = plan_phases(machine, recipe, gpus)
        memory = memory_line(largest_phase(recipe, gpus), gpus)
        return phase_report(machine, recipe, nodes, planned, memory=memory), ()
    shown = gpu_counts(machine.gpus_per_server, gpus)
    fixed = [estimate_run(machine, recipe, count) for count in shown]
    growing = [estimate_one_worker_per_gpu(machine, recipe, count) for count in shown]
    is_paper = paper.is_paper_setup(machine, recipe)
    memory = memory_line(recipe, gpus)
    text = report(machine, recipe, nodes, fixed, growing, memory=memory, is_paper=is_paper)
    return text, (recipe.name, fixed, growing, recipe.workers)


def _points(recipe: Recipe, options: argparse.Namespace) -> PublishedPoints | None:
    """Return the published convergence points to the accuracy of --to, or None without --to."""
    if options.to is None:
        if options.price or options.cheapest:
            raise UsageError("--price and --cheapest need a target; add --to 75.9")
        return None
    if options.cheapest and not options.price:
        raise UsageError("--cheapest needs the price of a GPU hour; add --price X")
    return find_points(options.to, recipe)


def split_cluster_size(argv: Sequence[str]) -> tuple[Sizes, list[str]]:
    """Separate the cluster's `nodes=` and `gpus=` from the other command-line arguments.

    Raises UsageError for a size that is given twice or is not a whole number above 0.
    """
    sizes: Sizes = {}
    arguments = []
    for word in argv:
        key, _, value = word.partition("=")
        if key not in ("nodes", "gpus") or "=" not in word:
            arguments.append(word)
            continue
        if key in sizes:
            raise UsageError(f"{key}= is given twice; write it once")
        if not re.fullmatch("[0-9]{1,9}", value) or not int(value):
            raise UsageError(f"{word} is not a whole number above 0; write for example {key}=8")
        sizes[key] = int(value)
    return sizes, arguments


def _gpus(sizes: Sizes) -> int:
    if missing := [key for key in ("nodes", "gpus") if key not in sizes]:
        raise UsageError(
            f"{' and '.join(missing)} missing: nodes= servers of gpus= GPUs each; write for "
            "example nodes=32 gpus=8"
        )
    return sizes["nodes"] * sizes["gpus"]


def _command_line() -> RecipeParser:
    line = RecipeParser(program="lsgd.plan", about=ABOUT, command_keys=("nodes", "gpus"))
    line.usage = "python -m lsgd.plan recipe=NAME nodes=N gpus=G [key=value ...] [options]"
    line.add_argument(
        "--preset", choices=PRESETS, default="paper", help="the cluster (default: paper)"
    )
    speed = line.add_mutually_exclusive_group()
    speed.add_argument(
        "--images-per-second",
        type=positive_number,
        metavar="X",
        help="the speed of one GPU alone; known for ResNet-50 in the paper",
    )
    speed.add_argument(
        "--run",
        type=paths.parse_path,
        metavar="FOLDER",
        help="a run of one process, which has this speed in its rows",
    )
    line.add_argument(
        "--network-gbits", type=positive_number, metavar="X", help="the network of a server"
    )
    line.add_argument(
        "--allreduce",
        choices=ALGORITHMS,
        metavar="ALGORITHM",
        help="hierarchical, halving-doubling, ring or gloo (default: the preset's)",
    )
    line.add_argument(
        "--concurrent", type=integer_from(1), default=1, metavar="C", help=argparse.SUPPRESS
    )
    line.add_argument(
        "--fused",
        action=argparse.BooleanOptionalAction,
        help="all-reduce buckets or single tensors (default: the preset's)",
    )
    line.add_argument(
        "--to",
        type=positive_number,
        metavar="ACCURACY",
        help="find the minibatch that reaches this top-1 accuracy (in percent) first",
    )
    line.add_argument("--price", type=positive_number, metavar="X", help="the price of a GPU hour")
    line.add_argument(
        "--cheapest", action="store_true", help="find the cheapest minibatch, not the fastest"
    )
    line.add_path("--out", "FOLDER", "a new folder for table and plot")
    return line


def _hardware(options: argparse.Namespace) -> Hardware:
    hardware = PRESETS[options.preset]
    if options.network_gbits:
        hardware = hardware.with_value(
            "network_bandwidth", options.network_gbits, "--network-gbits"
        )
    return replace(
        hardware,
        allreduce=options.allreduce or hardware.allreduce,
        fused=hardware.fused if options.fused is None else options.fused,
    )


def _measured(recipe: Recipe, options: argparse.Namespace) -> MeasuredStep:
    if options.run:
        return measured_step.from_run(options.run, recipe)
    if options.images_per_second:
        return measured_step.from_speed(options.images_per_second, recipe)
    if options.preset != "h200" and paper.is_paper_model(recipe):
        return paper.paper_step()
    known = "an unchanged resnet50 at 224 pixels in float32 on a P100"
    raise UsageError(
        f"how fast a GPU of --preset {options.preset} trains {recipe.model.name} is unknown, "
        f"except for the paper's step of {known}; add --images-per-second X, or --run FOLDER of "
        "a short run on one GPU"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
