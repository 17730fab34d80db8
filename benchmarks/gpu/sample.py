"""Loader benchmark on the tests' photographs.

    python -m benchmarks.gpu.sample TEST_DATA OVERRIDES…

TEST_DATA has photographs of ImageNet in imagenet-sample/CLASS/, or 20 classes of Tiny-ImageNet,
packed into tiny-imagenet-20/train.npz and val.npz. They are put into a folder in the layout that
lsgd.prepare creates. OVERRIDES are those of `python -m lsgd.bench inputs`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import numpy as np

from lsgd.bench import inputs
from lsgd.errors import UsageError
from lsgd.inputs.index import class_folders, image_files
from lsgd.job.command import run_command
from lsgd.prepare.indexing import index_folder

PLACE = Path("runs/sample")
"""The folder of the photographs, recreated each time, since a killed run may leave part of it."""
SPLITS = ("train", "val")


def link_photographs(source: Path, root: Path) -> list[str]:
    """Link the same photographs as both splits, and return the overrides that describe them."""
    for split in SPLITS:
        (root / split).symlink_to(source.resolve())
    classes = class_folders(source)
    images = sum(len(image_files(source / name)) for name in classes)
    return [
        f"data.train_examples={images}",
        f"data.val_examples={images}",
        f"data.classes={len(classes)}",
    ]


def unpack_tiny_imagenet(source: Path, root: Path) -> list[str]:
    """Unpack the JPEG files of both splits, and return the overrides that describe them."""
    overrides = ["data=tiny_imagenet"]
    for split in SPLITS:
        with np.load(source / f"{split}.npz") as packed:
            data, offsets, labels = packed["data"].tobytes(), packed["offsets"], packed["labels"]
            classes = packed["classes"]
        for name in classes:
            (root / split / name).mkdir(parents=True)
        for number, label in enumerate(labels):
            file = root / split / classes[label] / f"{number}.JPEG"
            file.write_bytes(data[offsets[number] : offsets[number + 1]])
        overrides.append(f"data.{split}_examples={len(labels)}")
    return [*overrides, f"data.classes={len(classes)}"]


def measure(argv: Sequence[str]) -> None:
    """Create the folder and measure the loaders on it; raise UsageError without photographs."""
    test_data, arguments = Path(argv[0]), argv[1:]
    rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    if (photographs := test_data / "imagenet-sample").is_dir():
        made = link_photographs(photographs, PLACE)
    elif (packed := test_data / "tiny-imagenet-20").is_dir():
        made = unpack_tiny_imagenet(packed, PLACE)
    else:
        raise UsageError(
            f"{test_data} has neither imagenet-sample/ nor tiny-imagenet-20/; name a folder of "
            "test data, or prepare ImageNet and name its folder by LSGD_DATA"
        )
    index_folder(PLACE)
    inputs.main([*arguments, *made, f"data.root={PLACE}"])


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: measure(sys.argv[1:])))
