"""Compare BN of several workers in channels_last on a CPU: one call for all, and one call for each.

python results/2026-11-27-roofline/bn_by_workers.py recipe=bs256 workers_per_pass=2 …

The command line is that of a recipe. Whole steps of one micro-batch are made in turns by two
learners, in CPU seconds of the process.
"""

import statistics
import sys
import time
from dataclasses import replace

import numpy as np
import torch

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.rules import batchnorm
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy import StepTask

ROUNDS = 10


def main() -> None:
    """Print the median ratio of ten rounds, its third lowest and third highest, and the seconds."""
    recipe = config.load_recipe(sys.argv[1:])
    recipe = replace(recipe, schedule=replace(recipe.schedule, reference_lr=1e-9))
    device = pick_device("cpu")
    workers = recipe.micro_batch_workers
    examples = workers * recipe.worker_batch
    only = MicroBatch(0, np.arange(examples), range(workers))
    task = StepTask(0, examples, workers, [only])
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    learners = {name: Learner(recipe, SingleComm(), device) for name in ("all", "each")}
    ways = {"all": lambda images, workers: batchnorm.normalise_by_library}
    ways["each"] = batchnorm.choose_normalisation
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    repeats = 1
    for number in range(ROUNDS + 2):
        for name in sorted(learners, reverse=bool(number % 2)):
            batchnorm.choose_normalisation = ways[name]
            batches = [list(inputs.train([only])) for _ in range(repeats)]
            begin = time.process_time()
            for each in batches:
                train_step(learners[name], task, iter(each))
            took = (time.process_time() - begin) / repeats
            if number > 1:
                seconds[name].append(took)
        if number == 0:
            repeats = max(1, round(0.3 / took))
    ratios = sorted(e / a for e, a in zip(seconds["each"], seconds["all"], strict=True))
    print(
        f"{' '.join(sys.argv[1:])}: each / all {statistics.median(ratios):.3f} "
        f"({ratios[2]:.3f} to {ratios[-3]:.3f}), {statistics.median(seconds['all']):.4f} and "
        f"{statistics.median(seconds['each']):.4f} CPU s"
    )


if __name__ == "__main__":
    main()
