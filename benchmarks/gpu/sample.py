"""The loaders on the photographs of the tests: `python -m benchmarks.gpu.sample TEST_DATA WORDS…`.

TEST_DATA has photographs of ImageNet in imagenet-sample/CLASS/, or 20 classes of Tiny-ImageNet,
packed into tiny-imagenet-20/train.npz and val.npz. A folder is made of them as lsgd.prepare would
leave it, and WORDS are those of `python -m lsgd.bench inputs`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import numpy as np

from lsgd.bench import inputs
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.prepare.scan import index_folder

PLACE = Path("runs/sample")
"""Made anew each time, as a start that was killed may have left a part of it."""
SPLITS = ("train", "val")


def link_photographs(source: Path, root: Path) -> list[str]:
    """The same photographs to train and to validate; returns the words that say what they are."""
    for split in SPLITS:
        (root / split).symlink_to(source.resolve())
    images = len(list(source.glob("*/*")))
    classes = len(list(source.iterdir()))
    return [
        f"data.train_examples={images}",
        f"data.val_examples={images}",
        f"data.classes={classes}",
    ]


def unpack_tiny_imagenet(source: Path, root: Path) -> list[str]:
    """The JPEG files of both splits; returns the words that say what they are."""
    words = ["data=tiny_imagenet"]
    for split in SPLITS:
        with np.load(source / f"{split}.npz") as packed:
            data, offsets, labels = packed["data"].tobytes(), packed["offsets"], packed["labels"]
            classes = packed["classes"]
        for name in classes:
            (root / split / name).mkdir(parents=True)
        for number, label in enumerate(labels):
            file = root / split / classes[label] / f"{number}.JPEG"
            file.write_bytes(data[offsets[number] : offsets[number + 1]])
        words.append(f"data.{split}_examples={len(labels)}")
    return [*words, f"data.classes={len(classes)}"]


def measure(argv: Sequence[str]) -> None:
    """Make the folder and measure the loaders on it; raises Refused without photographs."""
    test_data, words = Path(argv[0]), argv[1:]
    rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    if (photographs := test_data / "imagenet-sample").is_dir():
        made = link_photographs(photographs, PLACE)
    elif (packed := test_data / "tiny-imagenet-20").is_dir():
        made = unpack_tiny_imagenet(packed, PLACE)
    else:
        raise Refused(
            f"{test_data} has neither imagenet-sample/ nor tiny-imagenet-20/; name a folder of "
            "test data, or prepare ImageNet and name its folder by LSGD_DATA"
        )
    index_folder(PLACE)
    inputs.main([*words, *made, f"data.root={PLACE}"])


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: measure(sys.argv[1:])))
