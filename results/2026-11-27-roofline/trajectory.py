"""Compare weights after steps in float64: BN of several workers by one call for all, and for each.

python results/2026-11-27-roofline/trajectory.py
"""

import numpy as np

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.rules import batchnorm
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy import StepTask

STEPS = 50
OVERRIDES = ("recipe=fashion_ladder_bs64", "precision=float64", "channels_last=true", "threads=1")


def main() -> None:
    """Print the largest difference of a weight, relative to the largest weight of its tensor."""
    recipe = config.load_recipe(
        [*OVERRIDES, "workers_per_pass=8", "noise_scale=false", "device=cpu", "hardware=none"]
    )
    device = pick_device("cpu")
    examples = recipe.workers * recipe.worker_batch
    ways = {"all": lambda images, workers: batchnorm.normalise_by_library}
    ways["each"] = batchnorm.choose_normalisation
    ends = []
    for way in ways.values():
        batchnorm.choose_normalisation = way
        learner = Learner(recipe, SingleComm(), device)
        inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
        for step in range(STEPS):
            numbers = np.arange(step * examples, (step + 1) * examples)
            only = MicroBatch(step, numbers, range(recipe.workers))
            task = StepTask(step, examples, recipe.workers, [only])
            train_step(learner, task, iter(list(inputs.train([only]))))
        ends.append([p.detach().clone() for p in learner.model.parameters()])
    largest = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*ends, strict=True))
    moved = max(float(p.grad.abs().max()) for p in learner.model.parameters() if p.grad is not None)
    print(f"{STEPS} steps: {largest:.1e}; the largest gradient of the last step: {moved:.1e}")


if __name__ == "__main__":
    main()
