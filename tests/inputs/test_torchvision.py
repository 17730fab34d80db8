import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lsgd import augmentation, config
from lsgd.errors import Refused
from lsgd.inputs import open_inputs
from lsgd.inputs.torchvision import FolderInputs
from lsgd.recipe import Data
from lsgd.recipe import Inputs as Settings
from lsgd.sampler import Pass

SEED, EPOCH, SIDE = 5, 2, 28
DATA = Data("made", 12, 6, 3, 3, SIDE, [0.5, 0.25, 0.4], [0.2, 0.3, 0.1], augmentation="crop_flip")
# File name: mode and size as stored. All that ImageNet has or is known to have had, and worse.
KINDS = {
    "gray.JPEG": ("L", (37, 61)),
    "cmyk.JPEG": ("CMYK", (50, 40)),
    "rgba.png": ("RGBA", (33, 97)),
    "odd.JPEG": ("RGB", (41, 29)),
}


def make_folder(folder: Path, classes: int, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"n{label:02}").mkdir(parents=True)
        for name in names:
            mode, (width, height) = KINDS[name]
            pixels = rng.integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
            image = Image.frombytes(mode, (width, height), pixels.tobytes())
            image.save(folder / f"n{label:02}" / name)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 classes of 4 images to train and 2 to validate."""
    root = tmp_path_factory.mktemp("made")
    make_folder(root / "train", 3, list(KINDS))
    make_folder(root / "val", 3, ["gray.JPEG", "rgba.png"])
    return root


def opened(root: Path, data: Data = DATA, processes: int = 0) -> FolderInputs:
    settings = Settings(loader="torchvision", processes=processes, prefetch=2)
    return FolderInputs(data, root, settings, seed=SEED, pins=False)


def stored(root: Path, split: str, example: int) -> Image.Image:
    """The example as a plain sorted walk over the folder finds it, in RGB."""
    files = sorted((root / split).glob("*/*"), key=lambda path: (path.parent.name, path.name))
    with Image.open(files[example]) as image:
        return image.convert("RGB")


def normalised(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (DATA.mean, DATA.std))
    return (pixels - mean) / std


def drawn(root: Path, example: int, epoch: int) -> Image.Image:
    """The example cut, resized and mirrored by PIL alone, as augmentation says."""
    ids, image = np.array([example]), stored(root, "train", example)
    ((left, top, width, height),) = augmentation.crop_windows(
        np.array([image.size]), ids, seed=SEED, epoch=epoch
    ).tolist()
    cropped = image.crop((left, top, left + width, top + height))
    resized = cropped.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    mirrored = augmentation.flips(ids, seed=SEED, epoch=epoch)[0]
    return resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else resized


def some_passes() -> Iterator[Pass]:
    for epoch, ids in ((EPOCH, [3, 0, 11, 6]), (EPOCH, [1, 2]), (EPOCH + 1, [10, 5, 4, 7, 8, 9])):
        yield Pass(epoch, np.array(ids), (len(ids),))


def test_windows_and_flips_are_those_of_augmentation(root: Path) -> None:
    """Of every example, whatever its mode and size, in two epochs."""
    inputs = opened(root)
    ids = np.array([7, 0, 11, 2, 9, 4, 5, 6, 3, 8, 1, 10])
    mirrored = set()
    for epoch in (EPOCH, EPOCH + 1):
        ((images, labels),) = inputs.train([Pass(epoch, ids, (6, 6))])
        expected = torch.stack([normalised(drawn(root, i, epoch)) for i in ids.tolist()])
        torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)
        assert labels.tolist() == (ids // 4).tolist()
        mirrored |= set(augmentation.flips(ids, seed=SEED, epoch=epoch).tolist())
    assert mirrored == {True, False}


@pytest.mark.slow
def test_loader_processes_change_nothing(root: Path) -> None:
    """The same images in the same order."""
    alone = list(opened(root).train(some_passes()))
    helped = list(opened(root, processes=2).train(some_passes()))
    assert [len(labels) for _, labels in alone] == [4, 2, 6]
    for (images, labels), (theirs, their_labels) in zip(alone, helped, strict=True):
        assert torch.equal(images, theirs)
        assert torch.equal(labels, their_labels)


@pytest.mark.parametrize("augmentation", ["crop_flip", "none"])
def test_validation_is_the_centre_of_a_short_side_of_256_for_224(
    root: Path, augmentation: str
) -> None:
    """Here 32 for 28; and training images too if nothing is to be drawn."""
    inputs = opened(root, replace(DATA, augmentation=augmentation))
    ((images, labels),) = inputs.validation([np.array([0, 5])])
    splits = [("val", images, (0, 5))]
    assert labels.tolist() == [0, 2]
    if augmentation == "none":
        ((images, _),) = inputs.train([Pass(0, np.array([2, 3]), (2,))])
        splits.append(("train", images, (2, 3)))
    for split, found, ids in splits:
        for image, example in zip(found, ids, strict=True):
            whole = stored(root, split, example)
            width, height = (int(32 * side / min(whole.size)) for side in whole.size)
            resized = whole.resize((width, height), Image.Resampling.BILINEAR)
            left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
            centre = resized.crop((left, top, left + SIDE, top + SIDE))
            torch.testing.assert_close(image, normalised(centre), rtol=1e-5, atol=1e-5)


@pytest.mark.data
def test_real_images(test_data: Path, tmp_path: Path) -> None:
    """Odd ones of ImageNet: rotated by EXIF, with an invalid rotation, very large, very small."""
    names = [
        "n02951585_can_opener",
        "n01728572_thunder_snake",
        "n02091032_Italian_greyhound",
        "n01871265_tusker",
    ]
    for split in ("train", "val"):
        for name in names:
            source = test_data / "imagenet-sample" / name.partition("_")[0] / f"{name}.JPEG"
            (tmp_path / split / name).mkdir(parents=True)
            shutil.copy(source, tmp_path / split / name)
    data = replace(DATA, train_examples=4, val_examples=4, classes=4)
    inputs = opened(tmp_path, data)
    ((images, _),) = inputs.train([Pass(EPOCH, np.arange(4), (4,))])
    expected = torch.stack([normalised(drawn(tmp_path, i, EPOCH)) for i in range(4)])
    torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)
    ((images, labels),) = inputs.validation([np.arange(4)])
    assert torch.isfinite(images).all()
    assert labels.tolist() == [0, 1, 2, 3]


def test_a_pass_needs_few_open_files(root: Path) -> None:
    """One may carry thousands of images, and 1024 files is what a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, hard))
    try:
        ids = np.arange(60) % 12
        ((images, _),) = opened(root).train([Pass(EPOCH, ids, (60,))])
        assert len(images) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_examples": 13}, r"data.train_examples=13 but .*train has 12; .*train_examples=12"),
        ({"val_examples": 7}, r"data.val_examples=7 but .*val has 6"),
        ({"classes": 4}, r"data.classes=4 but .*train has 3"),
        ({"augmentation": "shift_flip"}, "shift_flip is for small images in memory"),
    ],
)
def test_another_dataset_than_the_recipes_is_refused(
    root: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        opened(root, replace(DATA, **change))


def test_other_classes_to_validate_are_refused(tmp_path: Path, root: Path) -> None:
    """As many, but of other names: all validation labels from there on would be wrong."""
    (tmp_path / "train").symlink_to(root / "train")
    shutil.copytree(root / "val", tmp_path / "val")
    (tmp_path / "val" / "n01").rename(tmp_path / "val" / "n03")
    with pytest.raises(Refused, match=r"differ in their classes \(n01, n03"):
        opened(tmp_path)


@pytest.mark.parametrize("missing", ["train", "val"])
def test_a_missing_folder_is_refused_with_help(tmp_path: Path, root: Path, missing: str) -> None:
    for split in {"train", "val"} - {missing}:
        (tmp_path / split).symlink_to(root / split)
    with pytest.raises(Refused) as refused:
        opened(tmp_path)
    for help_ in (
        f"no folder {tmp_path / missing}",
        "data.root=",
        "inputs=synthetic",
        "rehearse=true",
    ):
        assert help_ in str(refused.value)


@pytest.mark.parametrize("content", ["nothing", "an empty class", "files without classes"])
def test_what_is_no_image_folder_is_refused(tmp_path: Path, root: Path, content: str) -> None:
    (tmp_path / "val").symlink_to(root / "val")
    (tmp_path / "train").mkdir()
    if content == "an empty class":
        (tmp_path / "train" / "n00").mkdir()
    if content == "files without classes":
        (tmp_path / "train" / "a.JPEG").touch()
    with pytest.raises(Refused, match=rf"{tmp_path}/train is no image folder"):
        opened(tmp_path)


def test_imagenet_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSGD_DATA", "nowhere")
    recipe = config.load_recipe(["+recipe=bs8k"])
    with pytest.raises(Refused, match="no imagenet at nowhere/imagenet"):
        open_inputs(recipe, torch.device("cpu"))
    digits = config.load_recipe(["+recipe=digits", "inputs=torchvision"])
    with pytest.raises(Refused, match="digits is not one; write inputs=memory"):
        open_inputs(digits, torch.device("cpu"))


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("left", [0, 100])
def test_a_damaged_image_is_named(tmp_path: Path, root: Path, processes: int, left: int) -> None:
    """Empty or cut short, also where another process decodes it."""
    shutil.copytree(root, tmp_path / "copy")
    damaged = tmp_path / "copy" / "train" / "n01" / "odd.JPEG"
    damaged.write_bytes(damaged.read_bytes()[: left * 6])
    inputs = opened(tmp_path / "copy", processes=processes)
    with pytest.raises(Refused, match=f"^{damaged} cannot be read") as refusal:
        list(inputs.train([Pass(0, np.arange(12), (12,))]))
    assert refusal.value.here_only
