"""The tables and figures of what study.py has trained, as far as it has come.

    python report.py RUNS

writes tables.md, runs.json and the figures beside this file. An arm whose search has not ended is
printed as not tuned, and one without three seeds as not run.
"""

import json
import statistics
import sys
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
from study import ARMS, EVERY, SEARCH, SEEDS, error, folder, rows

from lsgd import config
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import VirtualTime, server_loads
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
LABELLED = (0.2, 0.3, 0.5, 1, 2, 10, 12, 15, 20, 30, 50)
"""What stands beside the axis of errors, in percent, or of losses."""
GOOD = 12.0
"""The error, in percent, whose time is compared: 88 % are right."""


def grid(runs: Path, arm: str) -> dict[int, float]:
    """The errors of the search so far, by the place on the grid."""
    found = {}
    for at in range(-12, 6):
        if (value := error(folder(runs, arm, at, SEARCH))) is not None:
            found[at] = value
    return found


def best(runs: Path, arm: str) -> int | None:
    """Where the arm is best, if that is not at an edge of what was tried."""
    errors = grid(runs, arm)
    if not errors:
        return None
    at = min(errors, key=lambda each: (errors[each], each))
    return at if min(errors) < at < max(errors) else None


@cache
def recipe(arm: str, seed: int) -> Recipe:
    """The recipe of an arm; its lr decides no time."""
    return config.load_recipe([*EVERY, *ARMS[arm][0], f"seed={seed}"])


@cache
def clock(arm: str, seed: int) -> list[float]:
    """The virtual seconds after each step of a run."""
    made = recipe(arm, seed)
    sizes = [parameter.numel() for parameter in make_network(made).parameters()]
    time = VirtualTime(
        made, server_loads(place(sizes, made.strategy.servers, made.strategy.placement), 4)
    )
    seconds, begin = [], 0.0
    for epoch in range(made.epochs):
        timeline = time.epoch(epoch).timeline
        seconds += [begin + each for each in timeline.updates]
        begin += timeline.seconds
    return seconds


def curve(runs: Path, arm: str, seed: int, kind: str, key: str) -> list[tuple[float, float]]:
    """What a run was like over virtual time."""
    at = best(runs, arm)
    assert at is not None
    made = rows(folder(runs, arm, at, seed))
    return [(clock(arm, seed)[int(r["step"]) - 1], r[key]) for r in made if r["kind"] == kind]


def mean_curve(
    runs: Path, arm: str, kind: str, key: str, seeds: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """The mean over the seeds, point by point."""
    curves = [curve(runs, arm, seed, kind, key) for seed in seeds]
    times = [statistics.mean(t for t, _ in points) for points in zip(*curves, strict=False)]
    values = [statistics.mean(v for _, v in points) for points in zip(*curves, strict=False)]
    return times, values


def finished(runs: Path, arm: str) -> list[float]:
    """The errors of the seeds at the best lr."""
    at = best(runs, arm)
    if at is None:
        return []
    errors = [error(folder(runs, arm, at, seed)) for seed in SEEDS]
    return [value for value in errors if value is not None]


def seconds_to_good(runs: Path, arm: str) -> str:
    """Of each seed the virtual seconds until an evaluation is good, their mean."""
    at = best(runs, arm)
    times = []
    for seed in SEEDS:
        good = [t for t, e in curve(runs, arm, seed, "epoch", "val_top1_error") if e <= GOOD]
        if not good:
            return f"not within {recipe(arm, seed).epochs} epochs"
        times.append(good[0])
    assert at is not None
    return f"{statistics.mean(times):.1f} ± {statistics.stdev(times):.1f}"


def table(runs: Path) -> str:
    """A row for each arm."""
    made = []
    for arm in ARMS:
        at, errors, tried = best(runs, arm), finished(runs, arm), grid(runs, arm)
        updates = str(recipe(arm, 0).total_steps)
        searched = ", ".join(f"{10 ** (i / 2):.2g}: {value:.2f}" for i, value in tried.items())
        if at is None or len(errors) < len(SEEDS):
            state = "not tuned, not run" if at is None else f"{len(errors)} of 3 seeds"
            made.append([arm, updates, searched or "–", "–", state, "–", "–"])
            continue
        spread = f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}"
        whole = statistics.mean(clock(arm, seed)[-1] for seed in SEEDS)
        made.append(
            [arm, updates, searched, f"{10 ** (at / 2):.2g}", spread, f"{whole:.1f}",
             seconds_to_good(runs, arm)]
        )  # fmt: skip
    head = [
        "arm", "updates", "search, seed 100 (lr: error, %)", "lr", "error, %, seeds 0 to 2",
        "virtual seconds", f"to {GOOD:g} % error",
    ]  # fmt: skip
    return markdown_table(head, made)


def figure(runs: Path, kind: str, key: str, name: str, label: str) -> None:
    """Curves over virtual time, with momentum and without."""
    whole = [arm for arm in ARMS if len(finished(runs, arm)) == len(SEEDS)]
    drawing, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, plain in zip(axes, (False, True), strict=True):
        for arm in whole:
            if arm.endswith("no momentum") == plain:
                times, values = mean_curve(runs, arm, kind, key, SEEDS)
                axis.plot(times, values, label=arm.replace(", no momentum", ""), linewidth=1.3)
        axis.set_title("without momentum" if plain else "momentum 0.9, Nesterov")
        axis.set_xlabel("virtual seconds")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    axes[0].set_ylabel(label)
    axes[0].set_yscale("log")
    for which in (axes[0].yaxis.set_major_formatter, axes[0].yaxis.set_minor_formatter):
        which(lambda value, _: f"{value:g}" if value in LABELLED else "")
    drawing.tight_layout()
    drawing.savefig(HERE / f"{name}.png", dpi=110)


def epochs(runs: Path) -> dict[str, list[list[float]]]:
    """Of every run that is done the training loss, its error and the validation error by epoch."""
    keys = ("train_loss", "train_top1_error", "val_top1_error")
    done = {}
    for arm in ARMS:
        for at in range(-12, 6):
            for seed in (SEARCH, *SEEDS):
                run = folder(runs, arm, at, seed)
                if error(run) is not None:
                    ended = [row for row in rows(run) if row["kind"] == "epoch"]
                    values = [[round(row[key], 4) for key in keys] for row in ended]
                    done[f"{arm}, lr {10 ** (at / 2):.3g}, seed {seed}"] = values
    return done


if __name__ == "__main__":
    runs = Path(sys.argv[1])
    lines = [f"{json.dumps(run)}: {json.dumps(made)}" for run, made in epochs(runs).items()]
    (HERE / "runs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (HERE / "tables.md").write_text(table(runs) + "\n")
    figure(runs, "epoch", "val_top1_error", "error", "top-1 error, %, mean of 3 seeds")
    figure(runs, "train", "loss", "loss", "training loss, mean of 3 seeds")
