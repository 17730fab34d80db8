"""`python -m benchmarks.peers` with lsgd as it comes and both scripts, in few rounds and steps.

python measure.py VISION TIMM FOLDER SIDE ROUNDS STEPS OUT [--fastest]
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import process_measurement
from benchmarks.peers import (
    FASTEST,
    OURS,
    SCRIPTS,
    bench,
    lsgd_trainings,
    recipe_overrides,
    report,
)
from lsgd.bench import results
from lsgd.bench.setting import environment_facts
from lsgd.config import load_recipe


def main(
    vision: str, timm: str, folder: str, side: str, rounds: str, steps: str, out: str, *more: str
) -> None:
    """Measure, print the report and keep it in the folder `out`."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    # The first step allocates the memory of the others.
    process_measurement.WARMUP_STEPS = 1
    fastest = "--fastest" in more
    checkouts = {"torchvision": Path(vision), "timm": Path(timm)}
    with (
        results.open_record("peers", "measure", sys.argv[1:], Path(out)) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        overrides = recipe_overrides(Path(folder), Path(index), int(side), 1)
        if fastest:
            overrides += FASTEST
        recipe = load_recipe(overrides)
        result = environment_facts(torch.device("cpu")) | {
            "model": recipe.model.name,
            "image_size": recipe.data.image_size,
            "batch": recipe.batch_size,
            "loaders": 1,
            "rounds": int(rounds),
            "steps": int(steps),
            "fastest": fastest,
            "scripts": {name: SCRIPTS[name].description(at) for name, at in checkouts.items()},
        }
        starts = {OURS: lsgd_trainings(overrides, cache=Path(index) / "cache")[OURS]}
        starts |= {
            name: SCRIPTS[name].training_factory(at, recipe, fastest=fastest)
            for name, at in checkouts.items()
        }
        bench(starts, result, limit=900, keep=record.write_result)
        record.write_report(result, report(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
