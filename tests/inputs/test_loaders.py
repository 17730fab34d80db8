"""What holds for every loader of image files, in folders and in tar shards alike."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import WITHIN, within_bounds
from helpers.folders import (
    DATA,
    LOADERS,
    SIDE,
    copy,
    drawn,
    in_shards,
    link_sample,
    make_folder,
    make_numbered,
    normalised,
    opened,
    stored,
)
from helpers.passes import evaluating
from PIL import Image

from lsgd.errors import InputFailed
from lsgd.prepare.scan import index_folder
from lsgd.recipe import Data
from lsgd.rules import sampler
from lsgd.rules.sampler import Pass

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
    within_bounds(levels)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("made") / "root")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    return link_sample(tmp_path_factory.mktemp("imagenet") / "root", test_data)


def some_passes(epochs: int) -> Iterator[Pass]:
    """Every image of the sample in one of the epochs, in passes of other sizes."""
    order = np.random.default_rng(0).permutation(569)
    for epoch, part in enumerate(np.array_split(order, epochs)):
        for step, ids in enumerate(np.split(part, [40, 90, 91, 140])):
            yield Pass(epoch, ids, step=step)


# --- The same images -------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.dali
@pytest.mark.slow
def test_same_order_and_windows_for_three_epochs(sample: Path, tmp_path: Path) -> None:
    """Each of the 569 images is the only one of its class, so the labels are the ids; another
    window, by a pixel, or another flip would be far outside of the bounds."""
    shards = in_shards(sample, tmp_path / "shards")
    largest = "val_batch=50"
    loaders = {
        "torchvision": opened(sample, "torchvision", SAMPLE, largest),
        "dali": opened(sample, "dali", SAMPLE, largest),
        "torchvision in shards": opened(shards, "torchvision", SAMPLE, largest),
        "dali in shards": opened(shards, "dali", SAMPLE, largest),
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
    """Of every example, whatever its mode and size, in two epochs, as PIL alone would do it."""
    data = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)
    inputs = opened(root, loader, data)
    ids = np.array([7, 0, 11, 2, 9, 4, 5, 6, 3, 8, 1, 10])
    for epoch in (EPOCH, EPOCH + 1):
        ((images, labels),) = inputs.train([Pass(epoch, ids, range(2))])
        expected = torch.stack([normalised(drawn(root, i, epoch), data) for i in ids.tolist()])
        levels = (images - expected).abs() / LEVEL
        if loader == "torchvision":
            assert levels.max() < 1e-3
        else:
            within_bounds(levels, decoding=1)  # one is of CMYK
        assert labels.tolist() == (ids // 4).tolist()


@pytest.mark.parametrize("loader", LOADERS)
def test_pixels_are_normalised_per_channel(root: Path, loader: str) -> None:
    plain = opened(root, loader, replace(DATA, mean=[0.0] * 3, std=[1.0] * 3))
    ((pixels, _),) = plain.train([Pass(EPOCH, np.arange(12))])
    dtypes = [("float32", 1e-5), ("float16", 1e-2)]
    for dtype, tolerance in dtypes if loader == "dali" else dtypes[:1]:
        inputs = opened(root, loader, DATA, f"inputs.dtype={dtype}")
        ((images, _),) = inputs.train([Pass(EPOCH, np.arange(12))])
        mean, std = (torch.tensor(values)[:, None, None] for values in (DATA.mean, DATA.std))
        assert images.dtype == getattr(torch, dtype)
        torch.testing.assert_close(
            images.float(), (pixels - mean) / std, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("channels_last", ["true", "false"])
def test_images_lie_as_the_model_wants_them(root: Path, loader: str, channels_last: str) -> None:
    """The same images; DALI writes them so, and the page turns those of torchvision."""
    ((images, _),) = opened(root, loader, DATA, f"channels_last={channels_last}").evaluation(
        evaluating(np.arange(6))
    )
    ((others, _),) = opened(root, loader).evaluation(evaluating(np.arange(6)))
    assert images.shape == (6, 3, SIDE, SIDE)
    torch.testing.assert_close(images, others, rtol=0, atol=0)
    if loader == "dali":
        layout = torch.channels_last if channels_last == "true" else torch.contiguous_format
        assert images.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("augmentation", ["crop_flip", "none"])
def test_validation_is_the_centre_of_a_short_side_of_256_for_224(
    root: Path, augmentation: str, loader: str
) -> None:
    """Here 32 for 28; and training images too if nothing is to be drawn."""
    data = replace(DATA, augmentation=augmentation, mean=[0.0] * 3, std=[1.0] * 3)
    inputs = opened(root, loader, data)
    ((images, labels),) = inputs.evaluation(evaluating(np.array([0, 5])))
    splits = [("val", images, (0, 5))]
    assert labels.tolist() == [0, 2]
    if augmentation == "none":
        ((images, _),) = inputs.train([Pass(0, np.array([2, 3]))])
        splits.append(("train", images, (2, 3)))
    for split, found, ids in splits:
        for image, example in zip(found, ids, strict=True):
            whole = stored(root, split, example)
            width, height = (int(32 * side / min(whole.size)) for side in whole.size)
            resized = whole.resize((width, height), Image.Resampling.BILINEAR)
            left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
            centre = normalised(resized.crop((left, top, left + SIDE, top + SIDE)), data)
            levels = (image - centre).abs() / LEVEL
            assert levels.max() < (1e-3 if loader == "torchvision" else WITHIN + 1e-3)


@pytest.mark.data
@pytest.mark.dali
@pytest.mark.slow
def test_validation_agrees_on_real_images(sample: Path) -> None:
    chunks = np.split(np.arange(569), [64, 65, 300])
    pairs = zip(
        opened(sample, "torchvision", SAMPLE).evaluation(evaluating(*chunks)),
        opened(sample, "dali", SAMPLE, "val_batch=300").evaluation(evaluating(*chunks)),
        strict=True,
    )
    for (theirs, labels), (images, same) in pairs:
        assert labels.tolist() == same.tolist()
        levels = (images - theirs).abs() / LEVEL
        assert levels.max() < WITHIN + 1e-3
        assert levels.mean() < MEAN


# --- The same examples -----------------------------------------------------------------------


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5])
def test_every_example_once(numbered: Path, loader: str, processes: int) -> None:
    """In an epoch and in an evaluation, by numbers that divide nothing."""
    inputs = opened(numbered, loader, NUMBERED)
    for epoch in range(2):
        order = sampler.epoch_order(53, seed=1, epoch=epoch)
        seen = []
        for rank in range(processes):
            passes = [
                each
                for step in range(sampler.steps_per_epoch(53, 7 * 3, keeps_tail=True))
                for each in sampler.step_passes(
                    order, epoch=epoch, step=step, workers=7, worker_batch=3,
                    hosted=sampler.share(7, processes, rank), workers_per_pass=2,
                )
            ]  # fmt: skip
            batches = list(inputs.train(passes))
            assert [len(images) for images, _ in batches] == [len(p.examples) for p in passes]
            seen += [label for _, labels in batches for label in labels.tolist()]
        assert sorted(seen) == list(range(53))
    validated = []
    for rank in range(processes):
        ids = np.array(sampler.share(53, processes, rank))
        chunks = [ids[i : i + 4] for i in range(0, len(ids), 4)]
        batches = inputs.evaluation(evaluating(*chunks))
        validated += [x for _, labels in batches for x in labels.tolist()]
    assert validated == list(range(53))


NUMBERED = replace(DATA, train_examples=53, val_examples=53, classes=53)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_numbered(tmp_path_factory.mktemp("numbered") / "root", 53)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_round_that_is_given_up_leaves_nothing_behind(numbered: Path, loader: str) -> None:
    """What was prefetched for it must not be taken for the next round's, and no more of it made."""
    inputs = opened(numbered, loader, NUMBERED)
    some = [Pass(0, np.arange(i, i + 5)) for i in range(0, 50, 5)]
    asked = []
    given_up = inputs.train(asked.append(each) or each for each in some * 100)
    next(given_up)
    del given_up
    two = evaluating(np.array([3]), np.array([1]))
    labels = [labels.tolist() for _, labels in inputs.evaluation(two)]
    assert labels == [[3], [1]]
    assert len(asked) < 20
    labels = [labels.tolist() for _, labels in inputs.train(some[1:2])]
    assert labels == [[5, 6, 7, 8, 9]]


# --- Decoding --------------------------------------------------------------------------------


def jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def odd_files(test_data: Path) -> dict[str, bytes]:
    """Every kind of file that ImageNet has, or is known to have had, made of real pixels."""
    folder = test_data / "imagenet-sample"
    real = {
        name: (folder / name.partition("_")[0] / f"{name}.JPEG").read_bytes()
        for name in (
            "n02951585_can_opener",  # rotated, says EXIF
            "n01728572_thunder_snake",  # an invalid rotation
            "n02091032_Italian_greyhound",  # 2400 x 1600
            "n01871265_tusker",  # 75 x 56
        )
    }
    photo = Image.open(folder / "n01440764" / "n01440764_tench.JPEG")
    png = io.BytesIO()
    photo.save(png, "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    return real | {
        "gray": jpeg(photo.convert("L")),
        "CMYK": jpeg(photo.convert("CMYK")),
        "progressive": jpeg(photo, progressive=True),
        "PNG called JPEG": png.getvalue(),
        "4:4:4": jpeg(photo, subsampling=0),
        "4:2:2": jpeg(photo, subsampling=1),
        "4:2:0": jpeg(photo, subsampling=2),
        "EXIF-rotated": jpeg(photo, exif=exif),
        "1x1": jpeg(photo.resize((1, 1))),
        "1x40": jpeg(photo.resize((1, 40))),
    }


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    root = tmp_path_factory.mktemp("odd") / "root"
    for split in ("train", "val"):
        for name, content in odd_files(test_data).items():
            folder = root / split / name.replace(" ", "-").replace(":", "")
            folder.mkdir(parents=True)
            (folder / "one.JPEG").write_bytes(content)
    index_folder(root)
    return root


ODD = replace(SAMPLE, train_examples=14, val_examples=14, classes=14)


@pytest.mark.data
@pytest.mark.dali
def test_odd_files_agree_after_resizing(odd: Path) -> None:
    """Exactly before it: see test_dali.py."""
    loaders = [opened(odd, loader, ODD) for loader in ("torchvision", "dali")]
    passes = [Pass(epoch, np.arange(14)) for epoch in range(3)]
    for (expected, _), (found, _) in zip(*(i.train(passes) for i in loaders), strict=True):
        close_pixels("dali", found, expected)
    whole = evaluating(np.arange(14))
    ((expected, _),), ((found, _),) = (list(i.evaluation(whole)) for i in loaders)
    assert (found - expected).abs().max() / LEVEL < WITHIN + 1e-3


# --- Bad files -------------------------------------------------------------------------------


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    match how:
        case "empty":
            file.write_bytes(b"")
        case "cut in the header":
            file.write_bytes(content[:200])
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


BEFORE = ["empty", "cut in the header", "cut at the end", "no image", "zeros"]
FAULTS = [
    *((how, "before the index") for how in BEFORE),
    *((how, "after it") for how in (*BEFORE, "gone", "disk error")),
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
    inputs = opened(made, loader)
    if when == "after it":
        damage(bad, how)
    passes = [Pass(4, np.arange(4)), Pass(4, np.arange(4, 12), step=1)]
    with pytest.raises(InputFailed) as failure:
        list(inputs.train(passes))
    message = str(failure.value)
    assert message.startswith(f"{bad} cannot be read (")
    assert "needed in step 2 of epoch 5; " in message
    assert f"lsgd.prepare imagenet {made} --check" in message
    assert "data.skip_list=" in message


@pytest.mark.parametrize("loader", LOADERS)
def test_a_bad_file_of_an_evaluation_is_named(root: Path, tmp_path: Path, loader: str) -> None:
    made = copy(root, tmp_path / "copy")
    inputs = opened(made, loader)
    damage(made / "val" / "n01" / "gray.JPEG", "no image")
    with pytest.raises(InputFailed, match=r"val/n01/gray\.JPEG cannot .* needed in an evaluation"):
        list(inputs.evaluation(evaluating(np.arange(6))))


@pytest.mark.parametrize("loader", LOADERS)
def test_a_shard_that_is_cut_short_is_named(root: Path, tmp_path: Path, loader: str) -> None:
    shards = in_shards(root, tmp_path / "shards")
    inputs = opened(shards, loader)
    shard = shards / "train-000001.tar"
    with shard.open("rb+") as file:
        file.truncate(3000)
    with pytest.raises(InputFailed, match=rf"{shard}:train/n.* cannot be read \(it has \d+ bytes"):
        list(inputs.train([Pass(0, np.arange(12))]))


@pytest.mark.parametrize("loader", LOADERS)
def test_skipped_images_are_left_out(root: Path, tmp_path: Path, loader: str) -> None:
    """Even if their files are bad; the others close ranks."""
    made = copy(root, tmp_path / "copy")
    damage(made / "train" / "n01" / "odd.JPEG", "zeros")
    skip = ["train/n01/odd.JPEG", "val/n00/gray.JPEG"]
    data = replace(DATA, skip=skip, train_examples=11, val_examples=5)
    inputs = opened(made, loader, data)
    ((images, labels),) = inputs.train([Pass(EPOCH, np.arange(11))])
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert images.isfinite().all()
    ((_, labels),) = inputs.evaluation(evaluating(np.arange(5)))
    assert labels.tolist() == [0, 1, 1, 2, 2]
