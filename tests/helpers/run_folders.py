"""Run folders with given errors, in the format that a training run writes."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from helpers.composed import compose_recipe
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
    """Write a run folder of this recipe with these validation errors, one per finished epoch."""
    rates = [{"train_top1_error": error + 1, "val_top1_error": error} for error in errors]
    start = {"machine": machine, "host": "h", "torch": "2.13.0"}
    epochs = [rate | {"images_per_second": speed} for rate in rates]
    return _write(folder, words, seed, start, epochs, diverged)


def write_perplexity_run(
    folder: Path,
    *words: str,
    seed: int = 0,
    perplexities: Sequence[float] = (),
    metric: object = "perplexity",
    diverged: bool = False,
) -> Path:
    """Write a run folder of a language model with these validation perplexities, one per epoch.

    The recipe may be of another workload. The perplexity is lower by 2 on the test set, and by 10
    in training.
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
    return _write(folder, words, seed, start, epochs, diverged)


@cache
def _recipe_and_text(words: tuple[str, ...], seed: int) -> tuple[Recipe, str]:
    recipe = replace(compose_recipe(*words), seed=seed)
    return recipe, config.to_yaml(recipe)


def _write(
    folder: Path,
    words: tuple[str, ...],
    seed: int,
    start: Row,
    epochs: Sequence[Row],
    diverged: bool,
) -> Path:
    recipe, text = _recipe_and_text(words, seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    rows = [{"kind": "start", "step": 0} | start]
    for epoch, rates in enumerate(epochs, start=1):
        step = epoch * recipe.steps_per_epoch
        rows.append({"kind": "epoch", "step": step, "epoch": epoch} | rates)
    if diverged:
        rows.append({"kind": "diverged", "step": rows[-1]["step"], "text": "loss is nan"})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return folder


def write_finished_run(folder: Path, recipe: str, seed: int, error: float, *words: str) -> Path:
    """Write a finished run folder of 9 epochs whose last 5 errors have this median."""
    last = [error + 3, error - 0.5, error, error + 0.5, error - 1]
    first = [60.0, 40.0, 30.0, 20.0]
    name = folder / f"{recipe}-seed{seed}"
    return write_run(name, f"+recipe={recipe}", *words, seed=seed, errors=[*first, *last])
