"""An image folder with the first images of each of 20 classes of Tiny-ImageNet."""

from pathlib import Path

import numpy as np

from lsgd.prepare.indexing import index_folder


def write_images(root: Path, test_data: Path, *, train: int, val: int) -> None:
    """Write `train` and `val` images, spread evenly over all classes, and index the folder."""
    for split, images in (("train", train), ("val", val)):
        with np.load(test_data / "tiny-imagenet-20" / f"{split}.npz") as packed:
            data, offsets, labels = packed["data"].tobytes(), packed["offsets"], packed["labels"]
            classes = packed["classes"]
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for i in np.flatnonzero(labels == label)[: images // len(classes)]:
                file = root / split / name / f"{i}.JPEG"
                file.write_bytes(data[offsets[i] : offsets[i + 1]])
    index_folder(root)
