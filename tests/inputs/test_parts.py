"""The parts of an augmentation alone: in image folders and in memory, from draws by example."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.distributions import assert_same_distribution
from helpers.folders import DATA, LOADERS, SEED, open_folder_inputs, recipe
from torch import Tensor

from lsgd import vision
from lsgd.errors import UsageError
from lsgd.inputs import memory, open_inputs
from lsgd.inputs.arrays import ImageArrays
from lsgd.inputs.memory import MemoryInputs
from lsgd.inputs.policy import AugmentationPolicy
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

v2 = import_module(f"{vision.transforms.__name__}.v2")
CPU, EPOCH, IDS = torch.device("cpu"), 2, np.arange(12)
RAW = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)


def loaded(root: Path, loader: str, parts: str, *words: str, ids: np.ndarray = IDS) -> Tensor:
    """The images of an epoch, by example."""
    inputs = open_folder_inputs(root, loader, replace(RAW, augmentation=parts), *words)
    ((images, _),) = inputs.train([MicroBatch(EPOCH, ids)])
    return images


@pytest.mark.parametrize("loader", LOADERS)
def test_crops_and_flips_can_be_had_alone(root: Path, loader: str) -> None:
    """Together they are crop_flip; a crop alone is mirrored back, and a flip is of the centre."""
    whole = loaded(root, loader, "none")
    both = loaded(root, loader, "crop_flip")
    assert torch.equal(both, loaded(root, loader, "[crop, flip]"))
    mirrored = torch.from_numpy(augmentation.flip_mask(IDS, seed=SEED, epoch=EPOCH))
    assert 0 < mirrored.sum() < len(IDS)
    mask = mirrored[:, None, None, None]
    for parts, other in (("[crop]", both), ("[flip]", whole)):
        alone = loaded(root, loader, parts)
        torch.testing.assert_close(alone, torch.where(mask, other.flip(3), other))


@pytest.mark.parametrize("loader", LOADERS)
def test_a_window_is_erased_after_the_loader(root: Path, loader: str) -> None:
    before = loaded(root, loader, "crop_flip")
    data = replace(DATA, augmentation="[crop,flip,erasing]", erase_probability=0.5)
    inputs = open_folder_inputs(root, loader, data)
    ((images, _),) = inputs.train([MicroBatch(EPOCH, IDS)])
    windows = augmentation.erased_windows(
        DATA.image_size, IDS, probability=0.5, seed=SEED, epoch=EPOCH
    )
    mean, std = (torch.tensor(values)[:, None, None] for values in (DATA.mean, DATA.std))
    expected = (before - mean) / std
    for image, (left, top, right, bottom) in zip(expected, windows, strict=True):
        image[:, top:bottom, left:right] = 0
    assert 0 < (windows.sum(1) > 0).sum() < len(IDS)
    torch.testing.assert_close(images, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", augmentation.POLICIES)
def test_a_policy_is_torchvisions_from_a_seed_for_each_example(root: Path, policy: str) -> None:
    """Neither the order nor the process that decodes changes an image, nor an image the state."""
    state = torch.get_rng_state()
    parts = f"[crop,flip,{policy}]"
    images = loaded(root, "torchvision", parts)
    assert torch.equal(torch.get_rng_state(), state)
    order = np.random.default_rng(0).permutation(len(IDS))
    assert torch.equal(loaded(root, "torchvision", parts, ids=order), images[order])
    assert torch.equal(loaded(root, "torchvision", parts, "inputs.decoders=2"), images)
    bilinear = vision.transforms.InterpolationMode.BILINEAR
    theirs = {
        "rand_augment": v2.RandAugment(2, 9, interpolation=bilinear),
        "trivial_augment": v2.TrivialAugmentWide(interpolation=bilinear),
    }
    seeds = augmentation.policy_seeds(IDS, seed=SEED, epoch=EPOCH)
    with torch.random.fork_rng():
        for image, before, seed in zip(
            images, loaded(root, "torchvision", "crop_flip"), seeds, strict=True
        ):
            torch.manual_seed(int(seed))
            pil = vision.transforms.functional.to_pil_image(before)
            expected = vision.transforms.functional.to_tensor(theirs[policy](pil))
            torch.testing.assert_close(image, expected)


@pytest.mark.slow
def test_operations_are_as_frequent_as_torchvision_draws_them() -> None:
    """A brightness of a grey image is a number, so its distribution is that of the policy."""
    grey = torch.full((3, 1, 1), 100, dtype=torch.uint8)
    ours = AugmentationPolicy(replace(RAW, augmentation="[trivial_augment]"))
    seeds = augmentation.policy_seeds(np.arange(3000), seed=0, epoch=0)
    found = [float(ours.apply(grey, int(seed))[0]) for seed in seeds]
    torch.manual_seed(1)
    theirs = v2.TrivialAugmentWide(interpolation=vision.transforms.InterpolationMode.BILINEAR)
    drawn = [float(theirs(grey)[0]) for _ in range(3000)]
    assert_same_distribution(np.array(found), np.array(drawn))


def test_dali_refuses_a_policy_and_auto_chooses_torchvision(root: Path) -> None:
    data = replace(RAW, augmentation="[crop,trivial_augment]")
    with pytest.raises(UsageError, match=r"which DALI cannot apply .* write inputs=torchvision"):
        open_folder_inputs(root, "dali", data)
    chosen = open_inputs(recipe(root, "auto", data, "inputs.decoders=0"), CPU)
    assert chosen.name == "torchvision in 0 processes"


def test_augmentation_ends_with_its_epochs(root: Path) -> None:
    parts = "[crop,flip,trivial_augment,colour,erasing]"
    data = replace(RAW, augmentation=parts, augmented_epochs=EPOCH, erase_probability=1.0)
    inputs = open_folder_inputs(root, "torchvision", data)
    ((images, _),) = inputs.train([MicroBatch(EPOCH, IDS)])
    assert torch.equal(images, loaded(root, "torchvision", "none"))
    ((earlier, _),) = inputs.train([MicroBatch(EPOCH - 1, IDS)])
    assert not any(map(torch.equal, earlier, images))


def test_small_images_are_shifted_flipped_and_changed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    arrays = ImageArrays(pixels, IDS % 10)
    monkeypatch.setattr(memory, "load_arrays", lambda *_: (arrays, arrays))

    def images(parts: str) -> Tensor:
        data = Data("cifar10", 12, 12, 10, 3, 8, [0.0] * 3, [1.0] * 3, parts)
        inputs = MemoryInputs(data, Path(), seed=SEED, device=CPU)
        ((each, _),) = inputs.train([MicroBatch(EPOCH, IDS)])
        return each

    flips = torch.from_numpy(augmentation.flip_mask(IDS, seed=SEED, epoch=EPOCH))[
        :, None, None, None
    ]
    both, whole = images("shift_flip"), images("none")
    assert torch.equal(images("[shift,flip]"), both)
    assert torch.equal(images("[shift]"), torch.where(flips, both.flip(3), both))
    assert torch.equal(images("[flip]"), torch.where(flips, whole.flip(3), whole))
    policy = AugmentationPolicy(replace(RAW, augmentation="[trivial_augment]"))
    seeds = augmentation.policy_seeds(IDS, seed=SEED, epoch=EPOCH)
    each = map(policy.apply, torch.from_numpy(pixels), map(int, seeds))
    torch.testing.assert_close(images("[trivial_augment]"), torch.stack([*each]) / 255)
