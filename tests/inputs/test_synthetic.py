import numpy as np
import torch
from helpers.composed import compose_recipe
from helpers.micro_batches import evaluation_micro_batches

from lsgd.inputs import open_inputs, prefetch_limit
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.recipe import Data
from lsgd.rules.sampler import MicroBatch

CPU = torch.device("cpu")
DATA = Data("made-up", 10**9, 100, 7, 3, 16, [0.5] * 3, [0.5] * 3, augmentation="none")


def test_an_example_is_the_same_in_any_pass() -> None:
    inputs = SyntheticInputs(DATA, seed=0, device=CPU)
    ids = np.array([0, 5, 10**9 - 1])
    (images, labels), (again, _) = inputs.train(
        [MicroBatch(0, ids), MicroBatch(4, ids[::-1].copy(), range(3))]
    )
    assert images.shape == (3, 3, 16, 16)
    assert torch.equal(images.flip(0), again)
    assert not torch.equal(images[0], images[1])
    assert labels.tolist() == [0, 5, (10**9 - 1) % 7]
    ((held_out, labels),) = SyntheticInputs(DATA, seed=0, device=CPU).evaluation(
        evaluation_micro_batches(ids[:2])
    )
    assert torch.equal(held_out, images[:2])
    assert labels.tolist() == [0, 5]


def test_another_seed_makes_other_images() -> None:
    first, other = (SyntheticInputs(DATA, seed=seed, device=CPU).images for seed in (0, 1))
    assert not torch.equal(first, other)
    # Like normalised pixels: mean 0 and deviation 1.
    assert abs(first.mean()) < 0.02
    assert abs(first.std() - 1) < 0.02


def test_no_dataset_is_needed() -> None:
    recipe = compose_recipe("+recipe=bs8k", "inputs=synthetic", "data.root=nowhere")
    assert isinstance(open_inputs(recipe, CPU), SyntheticInputs)
    assert prefetch_limit(recipe) == 0
