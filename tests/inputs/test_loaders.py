"""What holds for every loader of image files, in folders and in tar shards alike."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import WITHIN, assert_within_bounds
from helpers.folders import (
    DATA,
    LOADERS,
    SIDE,
    augmented_image,
    copy,
    make_numbered,
    normalised,
    open_folder_inputs,
    recipe,
    stored,
    write_folder_shards,
)
from helpers.micro_batches import evaluation_micro_batches
from PIL import Image

from lsgd.errors import InputFailedError
from lsgd.inputs import prefetch_limit
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Data
from lsgd.rules.sampler import MicroBatch

EPOCH = 2
LEVEL = 1 / 255
"""One step of an 8-bit pixel, where mean is 0 and std is 1."""
SAMPLE = Data("sample", 569, 569, 569, 3, 224, [0.0] * 3, [1.0] * 3, augmentation="crop_flip")

# How far DALI may be from PIL on average after resizing photos, in levels of 8 bits.
MEAN = 0.3


def close_pixels(loader: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Images (images, channels, height, width) of mean 0 and std 1."""
    levels = (found - expected).abs() / LEVEL
    if loader == "torchvision":
        assert levels.max() < 1e-3
        return
    assert levels.mean(dim=(1, 2, 3)).max() < MEAN
    assert_within_bounds(levels)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """The 569 real images of ImageNet, one per class, to train and to validate."""
    root = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val"):
        (root / split).symlink_to(test_data / "imagenet-sample")
    index_folder(root, processes=2)
    return root


def some_passes(epochs: int) -> Iterator[MicroBatch]:
    """Every image of the sample in one of the epochs, in passes of other sizes."""
    order = np.random.default_rng(0).permutation(569)
    for epoch, part in enumerate(np.array_split(order, epochs)):
        for step, ids in enumerate(np.split(part, [40, 90, 91, 140])):
            yield MicroBatch(epoch, ids, step=step)


# --- The same images -------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.dali
@pytest.mark.slow
def test_same_order_and_windows_for_three_epochs(sample: Path, tmp_path: Path) -> None:
    """Each of the 569 images is the only one of its class, so the labels are the ids; another
    window, by a pixel, or another flip would be far outside of the bounds."""
    shards = write_folder_shards(sample, tmp_path / "shards")
    largest = "val_batch=50"
    loaders = {
        "torchvision": open_folder_inputs(sample, "torchvision", SAMPLE, largest),
        "dali": open_folder_inputs(sample, "dali", SAMPLE, largest),
        "torchvision in shards": open_folder_inputs(shards, "torchvision", SAMPLE, largest),
        "dali in shards": open_folder_inputs(shards, "dali", SAMPLE, largest),
    }
    rounds = [inputs.train(some_passes(3)) for inputs in loaders.values()]
    for each, *batches in zip(some_passes(3), *rounds, strict=True):
        for name, (images, labels) in zip(loaders, batches, strict=True):
            assert labels.tolist() == each.examples.tolist()
            close_pixels(name.split()[0], images, batches[0][0])
        # Shards change nothing at all.
        assert torch.equal(batches[0][0], batches[2][0])
        assert torch.equal(batches[1][0], batches[3][0])


@pytest.mark.parametrize("loader", LOADERS)
def test_windows_and_flips_are_those_of_augmentation(root: Path, loader: str) -> None:
    """Of every example, whatever its mode and size, in two epochs, as PIL alone would do it; in the
    second one with other ranges."""
    data = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)
    narrow = replace(data, crop_area=[0.05, 0.9], crop_aspect=[2 / 3, 3 / 2])
    ids = np.array([7, 0, 11, 2, 9, 4, 5, 6, 3, 8, 1, 10])
    for epoch, each in ((EPOCH, data), (EPOCH + 1, narrow)):
        inputs = open_folder_inputs(root, loader, each)
        ((images, labels),) = inputs.train([MicroBatch(epoch, ids, range(2))])
        ranges = {"area_range": each.crop_area, "aspect_range": each.crop_aspect}
        expected = torch.stack(
            [normalised(augmented_image(root, i, epoch, **ranges), data) for i in ids.tolist()]
        )
        levels = (images - expected).abs() / LEVEL
        if loader == "torchvision":
            assert levels.max() < 1e-3
        else:
            assert_within_bounds(levels, decoding=1)  # one is of CMYK
        assert labels.tolist() == (ids // 4).tolist()


@pytest.mark.parametrize("loader", LOADERS)
def test_a_size_is_that_of_the_epoch_without_a_restart(root: Path, loader: str) -> None:
    """Each pass equals that of a loader of its size, whose crops and flips are the same."""
    words = ("image_sizes.points=[[0,20],[2,40]]", "image_sizes.multiple=4", "epochs=4")
    inputs = open_folder_inputs(root, loader, DATA, *words, "schedule.milestones=[]")
    passes = [MicroBatch(epoch, np.arange(2 * epoch, 12), step=epoch) for epoch in range(4)]
    found = list(inputs.train(passes))
    assert [images.shape[-1] for images, _ in found] == [20, 32, 40, 40]
    for each, (images, labels) in zip(passes, found, strict=True):
        plain = open_folder_inputs(root, loader, replace(DATA, image_size=images.shape[-1]))
        ((expected, its),) = plain.train([each])
        assert torch.equal(images, expected)
        assert torch.equal(labels, its)
    ((images, _),) = inputs.evaluation(evaluation_micro_batches(np.arange(6)))
    assert images.shape == (6, 3, SIDE, SIDE)


@pytest.mark.parametrize("loader", LOADERS)
def test_pixels_are_normalised_per_channel(root: Path, loader: str) -> None:
    plain = open_folder_inputs(root, loader, replace(DATA, mean=[0.0] * 3, std=[1.0] * 3))
    ((pixels, _),) = plain.train([MicroBatch(EPOCH, np.arange(12))])
    dtypes = [("float32", 1e-5), ("float16", 1e-2)]
    for dtype, tolerance in dtypes if loader == "dali" else dtypes[:1]:
        inputs = open_folder_inputs(root, loader, DATA, f"inputs.dtype={dtype}")
        ((images, _),) = inputs.train([MicroBatch(EPOCH, np.arange(12))])
        mean, std = (torch.tensor(values)[:, None, None] for values in (DATA.mean, DATA.std))
        assert images.dtype == getattr(torch, dtype)
        torch.testing.assert_close(
            images.float(), (pixels - mean) / std, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("channels_last", ["true", "false"])
def test_images_lie_as_the_model_wants_them(root: Path, loader: str, channels_last: str) -> None:
    """The same images; DALI writes them so, and the page turns those of torchvision."""
    ((images, _),) = open_folder_inputs(
        root, loader, DATA, f"channels_last={channels_last}"
    ).evaluation(evaluation_micro_batches(np.arange(6)))
    ((others, _),) = open_folder_inputs(root, loader).evaluation(
        evaluation_micro_batches(np.arange(6))
    )
    assert images.shape == (6, 3, SIDE, SIDE)
    torch.testing.assert_close(images, others, rtol=0, atol=0)
    if loader == "dali":
        layout = torch.channels_last if channels_last == "true" else torch.contiguous_format
        assert images.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("augmentation", "epochs"), [("crop_flip", None), ("crop_flip", 3), ("none", None)]
)
def test_validation_is_the_centre_of_a_short_side_of_256_for_224(
    root: Path, augmentation: str, epochs: int | None, loader: str
) -> None:
    """Here 32 for 28; and training images too if nothing is to be drawn, or no more."""
    data = replace(DATA, augmentation=augmentation, mean=[0.0] * 3, std=[1.0] * 3)
    data = replace(data, augmented_epochs=epochs)
    inputs = open_folder_inputs(root, loader, data)
    ((images, labels),) = inputs.evaluation(evaluation_micro_batches(np.array([0, 5])))
    splits = [("val", images, (0, 5))]
    assert labels.tolist() == [0, 2]
    if augmentation == "none" or epochs:
        last, (images, _) = inputs.train([MicroBatch(e, np.array([2, 3])) for e in (2, 3)])
        splits.append(("train", images, (2, 3)))
        assert torch.equal(last[0], images) == (augmentation == "none")
    for split, found, ids in splits:
        for image, example in zip(found, ids, strict=True):
            whole = stored(root, split, example)
            width, height = (int(32 * side / min(whole.size)) for side in whole.size)
            resized = whole.resize((width, height), Image.Resampling.BILINEAR)
            left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
            centre = normalised(resized.crop((left, top, left + SIDE, top + SIDE)), data)
            levels = (image - centre).abs() / LEVEL
            assert levels.max() < (1e-3 if loader == "torchvision" else WITHIN + 1e-3)


# --- The same examples -----------------------------------------------------------------------


NUMBERED = replace(DATA, train_examples=53, val_examples=53, classes=53)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_numbered(tmp_path_factory.mktemp("numbered") / "root", 53)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_round_that_is_given_up_leaves_nothing_behind(numbered: Path, loader: str) -> None:
    """What was prefetched for it must not be taken for the next round's, and no more of it made."""
    inputs = open_folder_inputs(numbered, loader, NUMBERED)
    some = [MicroBatch(0, np.arange(i, i + 5)) for i in range(0, 50, 5)]
    asked = []
    given_up = inputs.train(asked.append(each) or each for each in some * 100)
    next(given_up)
    del given_up
    two = evaluation_micro_batches(np.array([3]), np.array([1]))
    labels = [labels.tolist() for _, labels in inputs.evaluation(two)]
    assert labels == [[3], [1]]
    made = recipe(numbered, loader, NUMBERED, "inputs.decoders=0")
    assert len(asked) <= 1 + prefetch_limit(made)
    labels = [labels.tolist() for _, labels in inputs.train(some[1:2])]
    assert labels == [[5, 6, 7, 8, 9]]


# --- Bad files -------------------------------------------------------------------------------


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    match how:
        case "empty":
            file.write_bytes(b"")
        case "cut at the end":
            file.write_bytes(content[:-2])
        case "no image":
            file.write_bytes(b"<html>404</html>" * 20)
        case "gone":
            file.unlink()
        case "disk error":
            # Reading the start of a process's memory is an input/output error.
            file.unlink()
            file.symlink_to("/proc/self/mem")
        case "zeros":
            file.write_bytes(bytes(len(content)))


FAULTS = [
    *((how, "before the index") for how in ("cut at the end", "zeros")),
    *((how, "after it") for how in ("empty", "cut at the end", "no image", "gone", "disk error")),
]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("how", "when"), FAULTS)
def test_a_bad_file_is_named_with_its_step(
    root: Path, tmp_path: Path, loader: str, when: str, how: str
) -> None:
    """Whether it was so when the index was made or became so while the run went on."""
    made = copy(root, tmp_path / "copy")
    bad = made / "train" / "n01" / "odd.JPEG"
    if when == "before the index":
        damage(bad, how)
        index_folder(made)
    inputs = open_folder_inputs(made, loader)
    if when == "after it":
        damage(bad, how)
    passes = [MicroBatch(4, np.arange(4)), MicroBatch(4, np.arange(4, 12), step=1)]
    with pytest.raises(InputFailedError) as failure:
        list(inputs.train(passes))
    message = str(failure.value)
    assert message.startswith(f"{bad} cannot be read (")
    assert "needed in step 2 of epoch 5; " in message
    assert f"lsgd.prepare folder {made} --check" in message
    assert "data.skip_list=" in message


@pytest.mark.parametrize("loader", LOADERS)
def test_a_bad_file_of_an_evaluation_is_named(root: Path, tmp_path: Path, loader: str) -> None:
    made = copy(root, tmp_path / "copy")
    inputs = open_folder_inputs(made, loader)
    damage(made / "val" / "n01" / "gray.JPEG", "no image")
    with pytest.raises(
        InputFailedError, match=r"val/n01/gray\.JPEG cannot .* needed in an evaluation"
    ):
        list(inputs.evaluation(evaluation_micro_batches(np.arange(6))))


@pytest.mark.parametrize("loader", LOADERS)
def test_a_shard_that_is_cut_short_is_named(root: Path, tmp_path: Path, loader: str) -> None:
    shards = write_folder_shards(root, tmp_path / "shards")
    inputs = open_folder_inputs(shards, loader)
    shard = shards / "train-000000.tar"
    with shard.open("rb+") as file:
        file.truncate(3000)
    with pytest.raises(
        InputFailedError, match=rf"{shard}:train/n.* cannot be read \(it has \d+ bytes"
    ):
        list(inputs.train([MicroBatch(0, np.arange(12))]))


@pytest.mark.parametrize("loader", LOADERS)
def test_skipped_images_are_left_out(root: Path, tmp_path: Path, loader: str) -> None:
    """Even if their files are bad; the others close ranks."""
    made = copy(root, tmp_path / "copy")
    damage(made / "train" / "n01" / "odd.JPEG", "zeros")
    skip = ["train/n01/odd.JPEG", "val/n00/gray.JPEG"]
    data = replace(DATA, skip=skip, train_examples=11, val_examples=5)
    inputs = open_folder_inputs(made, loader, data)
    ((images, labels),) = inputs.train([MicroBatch(EPOCH, np.arange(11))])
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert images.isfinite().all()
    ((_, labels),) = inputs.evaluation(evaluation_micro_batches(np.arange(5)))
    assert labels.tolist() == [0, 1, 1, 2, 2]
