"""Run folders with made-up errors, written as a run writes them."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from helpers.composed import composed
from lsgd import config
from lsgd.recipe import Recipe
from lsgd.run.rows import Row

MACHINE = "1 process, CPU, threads per process: 1; in memory"


def write_run(
    folder: Path,
    *words: str,
    seed: int = 0,
    errors: Sequence[float] = (),
    machine: str = MACHINE,
    speed: float = 1000.0,
    diverged: bool = False,
) -> Path:
    """A run of this recipe with these validation errors, one for each epoch that is done."""
    rates = [{"train_top1_error": error + 1, "val_top1_error": error} for error in errors]
    start = {"machine": machine, "host": "h", "torch": "2.13.0"}
    epochs = [rate | {"images_per_second": speed} for rate in rates]
    return _write(folder, replace(composed(*words), seed=seed), start, epochs, diverged)


def write_perplexity_run(
    folder: Path,
    *words: str,
    seed: int = 0,
    perplexities: Sequence[float] = (),
    metric: object = "perplexity",
    diverged: bool = False,
) -> Path:
    """A run with these validation perplexities, as one of a language model writes itself down.

    No recipe is of words yet, so that this one stands for one. On the test set each epoch is better
    by 2, and in training by 10.
    """
    epochs = [
        {
            f"{name}_{rate}": value
            for name, better in (("train", 10), ("val", 0), ("test", 2))
            for rate, value in (
                ("loss", math.log(perplexity - better)),
                ("perplexity", perplexity - better),
            )
        }
        | {"tokens_per_second": 5000.0, "data_wait": 0.0}
        for perplexity in perplexities
    ]
    start = {"machine": MACHINE, "host": "h", "torch": "2.13.0", "metric": metric}
    return _write(folder, replace(composed(*words), seed=seed), start, epochs, diverged)


def _write(folder: Path, recipe: Recipe, start: Row, epochs: Sequence[Row], diverged: bool) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml(recipe), encoding="utf-8")
    rows = [{"kind": "start", "step": 0} | start]
    for epoch, rates in enumerate(epochs, start=1):
        step = epoch * recipe.steps_per_epoch
        rows.append({"kind": "epoch", "step": step, "epoch": epoch} | rates)
    if diverged:
        rows.append({"kind": "diverged", "step": rows[-1]["step"], "text": "loss is nan"})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return folder


def finished(folder: Path, recipe: str, seed: int, error: float, *words: str) -> Path:
    """A finished run of Fashion-MNIST whose last 5 of 9 epochs have this median."""
    last = [error + 3, error - 0.5, error, error + 0.5, error - 1]
    first = [60.0, 40.0, 30.0, 20.0]
    name = folder / f"{recipe}-seed{seed}"
    return write_run(name, f"+recipe={recipe}", *words, seed=seed, errors=[*first, *last])
