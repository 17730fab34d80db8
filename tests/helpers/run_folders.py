"""Run folders with made-up errors, written as a run writes them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from lsgd import config
from lsgd.recipe import Recipe

MACHINE = "1 process, CPU, threads per process: 1; in memory"


@cache
def _recipe(words: tuple[str, ...]) -> Recipe:
    return config.load_recipe(words)


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
    recipe = replace(_recipe(words), seed=seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml(recipe), encoding="utf-8")
    rows = [{"kind": "start", "step": 0, "machine": machine, "host": "h", "torch": "2.13.0"}]
    for epoch, error in enumerate(errors, start=1):
        row = {"kind": "epoch", "step": epoch * recipe.steps_per_epoch, "epoch": epoch}
        row |= {"train_top1_error": error + 1, "val_top1_error": error, "images_per_second": speed}
        rows.append(row)
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
