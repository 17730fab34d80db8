"""Small archives in the official layout of ILSVRC 2012."""

import io
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from scipy.io import savemat

from lsgd.prepare.validation import imagenet_classes

WNIDS = list(imagenet_classes())
# As in the real devkit, the ids of classes do not follow the order of their WordNet ids.
BY_ID = [WNIDS[i * 7 % 1000] for i in range(1000)]


def write_tar(file: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    """Write a tar archive of these files (content by name) and return its path."""
    with tarfile.open(file, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def tar_bytes(members: Mapping[str, bytes], scratch: Path) -> bytes:
    """Return a tar archive of these files (content by name) as bytes."""
    content = write_tar(scratch, members).read_bytes()
    scratch.unlink()
    return content


def train_tar(file: Path, train: Mapping[str, Mapping[str, bytes]]) -> Path:
    """Write an archive like ILSVRC2012_img_train.tar: one inner tar per class, by WordNet id."""
    scratch = file.with_suffix(".class")
    return write_tar(
        file, {f"{wnid}.tar": tar_bytes(images, scratch) for wnid, images in train.items()}
    )


@cache
def synsets() -> bytes:
    """Return the bytes of the devkit's meta.mat: 1860 synsets, 1000 of them leaves."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "num_train")
    rows = np.empty((1860, 1), dtype=[(field, "O") for field in fields])
    for i in range(1860):
        leaf = i < 1000
        wnid = BY_ID[i] if leaf else f"n{90000000 + i}"
        rows[i, 0] = (
            np.array([[i + 1]], np.int16),
            wnid,
            f"words of {wnid}",
            "a gloss",
            np.array([[0 if leaf else 2]], np.uint8),
            np.zeros((1, 0 if leaf else 2), np.int16),
            np.array([[1300 if leaf else 0]], np.int16),
        )
    savemat(mat := io.BytesIO(), {"synsets": rows})
    return mat.getvalue()


def devkit(file: Path, labels: list[str]) -> Path:
    """Write an ILSVRC2012_devkit_t12.tar.gz with these classes as validation ground truth."""
    truth = "".join(f"{BY_ID.index(label) + 1}\n" for label in labels)
    folder = "ILSVRC2012_devkit_t12"
    contents = {
        f"{folder}/readme.txt": b"a readme",
        f"{folder}/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
        f"{folder}/data/meta.mat": synsets(),
    }
    return write_tar(file, contents, "w:gz")
