"""`python -m benchmarks.peers` at 224 pixels with two of its trainings, lsgd as it comes and
torchvision's script, and one step counted: `python measure.py VISION FOLDER ROUNDS OUT`.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.peers import OURS, SCRIPTS, bench, lsgd_trainings, recipe_overrides, report
from lsgd.bench import results
from lsgd.bench.setting import environment_facts
from lsgd.config import load_recipe


def main(vision: str, folder: str, rounds: str, out: str) -> None:
    """Measure, print the report and keep it in the folder `out`."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        results.open_record("peers", "measure", sys.argv[1:], Path(out)) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        words = recipe_overrides(Path(folder), Path(index), 224, 1)
        recipe = load_recipe(words)
        torchvision = SCRIPTS["torchvision"]
        result = environment_facts(torch.device("cpu")) | {
            "model": recipe.model.name,
            "image_size": recipe.data.image_size,
            "batch": recipe.batch_size,
            "loaders": 1,
            "rounds": int(rounds),
            "steps": 1,
            "scripts": {"torchvision": torchvision.description(Path(vision))},
        }
        starts = {
            OURS: lsgd_trainings(words)[OURS],
            "torchvision": torchvision.training_factory(Path(vision), recipe),
        }
        bench(starts, result, limit=600, keep=record.write_result)
        record.write_report(result, report(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
