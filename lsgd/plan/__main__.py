"""The command line: `python -m lsgd.plan +recipe=bs8k nodes=32 gpus=8`."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lsgd.config import RecipeParser
from lsgd.errors import Refused
from lsgd.files import new_folder
from lsgd.job.command import run_command
from lsgd.plan import measured, paper
from lsgd.plan.allreduce import ALGORITHMS
from lsgd.plan.gradients import pieces
from lsgd.plan.hardware import H200, PAPER, Hardware
from lsgd.plan.kept import keep, plotter
from lsgd.plan.step import Machine, Measured
from lsgd.plan.strategy import plan_strategy
from lsgd.plan.table import counts, one_worker_each, report, row
from lsgd.plan.target import arrival_report, find_arrivals, find_points
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known, check_one_batch, check_world_size
from lsgd.recipe.points import PublishedPoints

ABOUT = """\
What a run would take on so many servers: time per step and epoch, hours, efficiency, what bounds
it and how much network it needs; a table over 8 to 65536 GPUs, and every constant with its source.

  python -m lsgd.plan +recipe=bs8k nodes=32 gpus=8                  the paper's machine, and how
                                                                    far the model is off there
  … --preset h200 --images-per-second 3000                          another, by the speed of a GPU
  … --preset h200 --run runs/bs8k/20261120-152308-seed0             or by a run on one GPU
  … --network-gbits 25 --allreduce ring                             what if
  … --out plan                                                      table and plot in a new folder
  … --to 75.9                                                       which minibatch, on how many of
                                                                    these GPUs, is there first
  … --to 75.9 --price 2.5 --cheapest                                or costs least, at 2.5 for a
                                                                    GPU hour

  python -m lsgd.plan strategy --help                               parameter servers or all-reduce

The model: a step is that of one GPU, times the slowest of all GPUs, and what the backward pass does
not hide of the sums. A sum costs a latency for each message and the bytes on the slowest wire;
sums begin as the layers of the real model are done, and follow each other on the wire. Two
constants of the paper's machine are calibrated on what it reports, the latency of a message and the
spread of the GPUs' times.

With --to the steps are not those of the recipe, but what others have needed to that top-1 accuracy:
the reference convergence points of MLPerf Training, in recipes/points/. Between them minibatches
are interpolated; outside of them there is no answer.
"""

PRESETS = {
    "paper": PAPER,
    "h200": H200,
}

Sizes = dict[str, int]


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    if argv[:1] == ["strategy"]:
        return run_command(lambda: plan_strategy(argv[1:]))
    return run_command(lambda: plan(argv))


def plan(argv: Sequence[str]) -> None:
    """Print the plan for these words of the command line, and keep it in --out."""
    sizes, words = take_sizes(argv)
    recipe, options = _command_line().read(words)
    remedy = "a short run of it with profile=true shows where its time goes"
    check_known(recipe, "lsgd.plan", remedy, workloads=("images",), strategies=("allreduce",))
    check_one_batch(recipe, "lsgd.plan")
    gpus = _gpus(sizes, recipe)
    points = _points(recipe, options)
    if points is None:
        check_world_size(recipe, gpus)
    draw = plotter("draw" if points is None else "draw_arrivals") if options.out else None
    step = _measured(recipe, options)
    with new_folder(options.out) as folder:
        hardware = _hardware(options)
        sums = tuple(pieces(recipe, fused=hardware.fused))
        machine = Machine(hardware, sizes["gpus"], sums, step, options.concurrent)
        if points is None:
            text, drawn = _of_the_recipe(machine, recipe, sizes["nodes"], gpus)
        else:
            found = find_arrivals(machine, recipe, points, gpus)
            text = arrival_report(
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
            keep(folder, argv, text, draw(*drawn))
    if folder:
        print(f"\nkept in {folder}")


def _of_the_recipe(
    machine: Machine, recipe: Recipe, nodes: int, gpus: int
) -> tuple[str, tuple[object, ...]]:
    """The plan of the recipe's own steps: its text, and what its plot is drawn from."""
    shown = counts(machine.gpus_per_server, gpus)
    fixed = [row(machine, recipe, count) for count in shown]
    growing = [one_worker_each(machine, recipe, count) for count in shown]
    is_paper = paper.describes(machine, recipe)
    text = report(machine, recipe, nodes, fixed, growing, is_paper=is_paper)
    return text, (recipe.name, fixed, growing, recipe.workers)


def _points(recipe: Recipe, options: argparse.Namespace) -> PublishedPoints | None:
    """The points to the target of --to; None without it."""
    if options.to is None:
        if options.price or options.cheapest:
            raise Refused("--price and --cheapest are of a plan to a target; add --to 75.9")
        return None
    if options.cheapest and not options.price:
        raise Refused("--cheapest needs to know what a GPU costs; add --price X, for an hour of it")
    return find_points(options.to, recipe)


def take_sizes(argv: Sequence[str]) -> tuple[Sizes, list[str]]:
    """Separate the words `nodes=` and `gpus=`, which no recipe has, from all others.

    Raises Refused for a size that is given twice or is no whole number above 0.
    """
    sizes: Sizes = {}
    words = []
    for word in argv:
        key, _, value = word.partition("=")
        if key not in ("nodes", "gpus") or "=" not in word:
            words.append(word)
            continue
        if key in sizes:
            raise Refused(f"{key}= is given twice; write it once")
        if (size := whole_number(value)) is None:
            raise Refused(f"{word} is not a whole number above 0; write for example {key}=8")
        sizes[key] = size
    return sizes, words


def _gpus(sizes: Sizes, recipe: Recipe) -> int:
    if missing := [key for key in ("nodes", "gpus") if key not in sizes]:
        raise Refused(
            f"{' and '.join(missing)} missing: nodes= servers of gpus= GPUs each; write for "
            "example nodes=32 gpus=8"
        )
    if recipe.rehearse:
        raise Refused("rehearse=true is a run of a few steps; leave it out to plan the real one")
    return sizes["nodes"] * sizes["gpus"]


def _command_line() -> RecipeParser:
    line = RecipeParser(program="lsgd.plan", about=ABOUT, own=("nodes", "gpus"))
    line.usage = "python -m lsgd.plan +recipe=NAME nodes=N gpus=G [key=value ...] [options]"
    line.add_argument(
        "--preset", choices=PRESETS, default="paper", help="network and servers (paper)"
    )
    speed = line.add_mutually_exclusive_group()
    speed.add_argument(
        "--images-per-second",
        type=_positive,
        metavar="X",
        help="that one GPU trains, alone; the paper's step of ResNet-50 is known",
    )
    speed.add_argument(
        "--run", type=Path, metavar="FOLDER", help="a run of one process, which has measured that"
    )
    line.add_argument(
        "--network-gbits", type=_positive, metavar="X", help="of a server, instead of the preset's"
    )
    line.add_argument(
        "--allreduce",
        choices=ALGORITHMS,
        help="hierarchical: reduce in each server, halving-doubling between servers, broadcast; "
        "halving-doubling, ring: over all GPUs (default: the preset's)",
    )
    line.add_argument(
        "--concurrent", type=_count, default=1, metavar="C", help="sums under way at once (1)"
    )
    line.add_argument(
        "--fused",
        action=argparse.BooleanOptionalAction,
        help="sum lsgd's buckets (comm.bucket_mb), or every tensor alone (default: the preset's)",
    )
    line.add_argument(
        "--to",
        type=_positive,
        metavar="ACCURACY",
        help="top-1, in percent: which minibatch is there first, on at most nodes= x gpus= GPUs",
    )
    line.add_argument("--price", type=_positive, metavar="X", help="of a GPU hour, with --to")
    line.add_argument(
        "--cheapest", action="store_true", help="answer what costs least, not what is first"
    )
    line.add_argument(
        "--out", type=Path, metavar="FOLDER", help="a new folder for plan.md, plan.png, plan.svg"
    )
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


def _measured(recipe: Recipe, options: argparse.Namespace) -> Measured:
    if options.run:
        return measured.from_run(options.run, recipe)
    if options.images_per_second:
        return measured.from_speed(options.images_per_second, recipe)
    if options.preset != "h200" and paper.fits(recipe):
        return paper.measured()
    known = "resnet50 at 224 pixels in float32 on a P100"
    raise Refused(
        f"how fast a GPU of --preset {options.preset} trains {recipe.model.name} is not known, "
        f"only the paper's step of {known}; add --images-per-second X, or --run FOLDER of a short "
        "run on one GPU"
    )


def _positive(text: str) -> float:
    if re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", text) and 0 < float(text) < math.inf:
        return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


def _count(text: str) -> int:
    if (value := whole_number(text)) is None:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def whole_number(text: str) -> int | None:
    """The whole number above 0 that these digits write; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) and int(text) else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
