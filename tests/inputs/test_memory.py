from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.micro_batches import evaluation_micro_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lsgd.inputs import memory, open_inputs, prefetch_limit
from lsgd.inputs.arrays import ImageArrays
from lsgd.inputs.memory import MemoryInputs
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

CPU = torch.device("cpu")
MEAN, STD = [0.5, 0.25, 0.4], [0.2, 0.3, 0.1]


def arrays(examples: int, side: int) -> ImageArrays:
    """Images no two pixels of which are likely to be equal by chance in the same place."""
    rng = np.random.default_rng(examples)
    images = rng.integers(0, 256, (examples, 3, side, side), dtype=np.uint8)
    return ImageArrays(images, np.arange(examples, dtype=np.int64) % 10)


def inputs_of(side: int, augmentation: str, monkeypatch: pytest.MonkeyPatch) -> MemoryInputs:
    """30 images to train and 20 to validate, normalised by MEAN and STD."""
    data = Data("cifar10", 30, 20, 10, 3, side, MEAN, STD, augmentation)
    monkeypatch.setattr(memory, "load_arrays", lambda *_: (arrays(30, side), arrays(20, side)))
    return MemoryInputs(data, Path(), seed=5, device=CPU)


def normalised(pixels: np.ndarray) -> Tensor:
    """(channels, height, width) of 8 bits, as the model gets it."""
    scaled = (pixels / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    return torch.from_numpy(scaled)


def slow_shift_flip(image: np.ndarray, example: int, epoch: int) -> np.ndarray:
    """He et al. 2016, section 4.2: pad by 4, cut out the image's size, mirror half of them."""
    side, ids = image.shape[-1], np.array([example])
    ((top, left),) = augmentation.crop_corners(ids, 4, seed=5, epoch=epoch)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    cropped = padded[:, top : top + side, left : left + side]
    return cropped[:, :, ::-1] if augmentation.flip_mask(ids, seed=5, epoch=epoch)[0] else cropped


@given(ids=st.lists(st.integers(0, 29), min_size=1, max_size=12), epoch=st.integers(0, 5))
@pytest.mark.parametrize("side", [8, 13])
def test_shift_flip_is_that_of_each_image_alone(side: int, ids: list[int], epoch: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        inputs = inputs_of(side, "shift_flip", monkeypatch)
    wanted = MicroBatch(epoch, np.array(ids))
    ((images, labels),) = inputs.train([wanted])
    originals = arrays(30, side).images
    expected = torch.stack([normalised(slow_shift_flip(originals[i], i, epoch)) for i in ids])
    torch.testing.assert_close(images.double(), expected, rtol=1e-5, atol=1e-5)
    assert labels.tolist() == [i % 10 for i in ids]


def test_passes_come_in_order_and_unchanged_without_augmentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = inputs_of(8, "none", monkeypatch)
    wanted = [np.array([3, 29, 3]), np.array([0])]
    batches = list(inputs.train(MicroBatch(0, ids) for ids in wanted))
    originals = arrays(30, 8).images
    for ids, (images, labels) in zip(wanted, batches, strict=True):
        expected = torch.stack([normalised(originals[i]) for i in ids])
        torch.testing.assert_close(images.double(), expected, rtol=1e-5, atol=1e-5)
        assert images.dtype == torch.float32
        assert labels.tolist() == (ids % 10).tolist()


def test_a_size_is_that_of_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is resized alone, to the same bits in any micro-batch."""
    inputs = inputs_of(8, "none", monkeypatch)
    wanted = [np.array([3, 29]), np.array([29])]
    (both, _), (one, _) = inputs.train(MicroBatch(0, ids, side=12) for ids in wanted)
    assert both.shape[2:] == (12, 12)
    assert torch.equal(both[1:], one)
    ((plain, _),) = inputs.train([MicroBatch(0, wanted[1])])
    expected = F.interpolate(plain, (12, 12), mode="bilinear", antialias=True)
    torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)
    ((held_out, _),) = inputs.evaluation([MicroBatch(None, wanted[1] % 20, split="val", side=12)])
    ((plain, _),) = inputs.evaluation([MicroBatch(None, wanted[1] % 20, split="val")])
    expected = F.interpolate(plain, (12, 12), mode="bilinear", antialias=True)
    torch.testing.assert_close(held_out, expected, rtol=1e-4, atol=1e-4)


def test_validation_is_never_augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(8, "shift_flip", monkeypatch)
    ((images, labels),) = inputs.evaluation(evaluation_micro_batches(np.array([7, 19])))
    expected = torch.stack([normalised(arrays(20, 8).images[i]) for i in (7, 19)])
    torch.testing.assert_close(images.double(), expected, rtol=1e-5, atol=1e-5)
    assert labels.tolist() == [7, 9]


def test_digits_of_the_shipped_configuration() -> None:
    """Normalised by the mean and deviation of the training images that conf/ names."""
    recipe = compose_recipe("+recipe=digits")
    inputs = open_inputs(recipe, CPU)
    assert isinstance(inputs, MemoryInputs)
    assert prefetch_limit(recipe) == 0
    everything = MicroBatch(0, np.arange(recipe.data.train_examples))
    ((images, _),) = inputs.train([everything])
    assert images.shape == (1442, 1, 8, 8)
    assert images.mean().item() == pytest.approx(0, abs=1e-3)
    assert images.std().item() == pytest.approx(1, abs=1e-3)
