"""Small archives in the official layout, of real images."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.io import savemat

from lsgd.prepare.validation import classes

WNIDS = list(classes())
# The devkit numbers the classes by its own rule: here, as there, not by their order.
BY_ID = [WNIDS[i * 7 % 1000] for i in range(1000)]


def write_tar(file: Path, members: Mapping[str, bytes]) -> Path:
    """An uncompressed archive of these files."""
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def tar_bytes(members: Mapping[str, bytes], scratch: Path) -> bytes:
    """An archive of these files, as bytes."""
    content = write_tar(scratch, members).read_bytes()
    scratch.unlink()
    return content


def train_tar(file: Path, train: Mapping[str, Mapping[str, bytes]]) -> Path:
    """ILSVRC2012_img_train.tar of images by class."""
    scratch = file.with_suffix(".class")
    return write_tar(
        file, {f"{wnid}.tar": tar_bytes(images, scratch) for wnid, images in train.items()}
    )


def devkit(file: Path, labels: list[str]) -> Path:
    """ILSVRC2012_devkit_t12.tar.gz: 1860 synsets, 1000 of them leaves, and ground truth."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "num_train")
    synsets = np.empty((1860, 1), dtype=[(field, "O") for field in fields])
    for i in range(1860):
        leaf = i < 1000
        wnid = BY_ID[i] if leaf else f"n{90000000 + i}"
        synsets[i, 0] = (
            np.array([[i + 1]], np.int16),
            wnid,
            f"words of {wnid}",
            "a gloss",
            np.array([[0 if leaf else 2]], np.uint8),
            np.zeros((1, 0 if leaf else 2), np.int16),
            np.array([[1300 if leaf else 0]], np.int16),
        )
    mat = io.BytesIO()
    savemat(mat, {"synsets": synsets})
    truth = "".join(f"{BY_ID.index(label) + 1}\n" for label in labels)
    folder = "ILSVRC2012_devkit_t12"
    contents = {
        f"{folder}/readme.txt": b"a readme",
        f"{folder}/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
        f"{folder}/data/meta.mat": mat.getvalue(),
    }
    with tarfile.open(file, "w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file
