"""Small datasets as arrays, read from their files."""

import gzip
import io
import pickle
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lsgd import paths
from lsgd.errors import Refused
from lsgd.inputs.index import prepare_command
from lsgd.recipe import Data


@dataclass(frozen=True)
class Arrays:
    """Images (images, channels, height, width) of 8 bits, and labels (images,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_arrays(data: Data, root: Path) -> tuple[Arrays, Arrays]:
    """Training and validation set of a dataset that fits in memory.

    The digits come with lsgd, so `root` is not looked at for them. Raises Refused where the dataset
    is missing, or has other numbers of images than the recipe says.
    """
    if data.name == "digits":
        root = paths.digits_dir()
    readers = {"digits": _digits, "fashion-mnist": _fashion_mnist, "cifar10": _cifar10}
    try:
        train, validation = readers[data.name](root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused(
            f"no {data.name} at {root}: {error.filename} is missing; run "
            f"{prepare_command(data.name, root)}, which fetches it, or write data.root=FOLDER, or "
            "inputs=synthetic to train on made-up images"
        ) from None
    except Exception as error:
        # A reader may raise any error on bytes that are not what the file's name says.
        why = str(error) or type(error).__name__
        raise Refused(f"{data.name} at {root} cannot be read ({why}); fetch it again") from None
    for part in (train, validation):
        if len(part.images) != len(part.labels):
            raise Refused(
                f"{data.name} at {root} has {len(part.images)} images and {len(part.labels)} "
                "labels; fetch it again"
            )
    for name, number in (
        ("train_examples", len(train.labels)),
        ("val_examples", len(validation.labels)),
        ("classes", 1 + int(train.labels.max(initial=0))),
        ("channels", train.images.shape[1]),
        ("image_size", train.images.shape[2]),
    ):
        if number != (expected := getattr(data, name)):
            raise Refused(
                f"data.{name}={expected} but {data.name} at {root} has {number}; complete it, or "
                f"write data.{name}={number} for another trajectory"
            )
    return train, validation


def _digits(root: Path) -> tuple[Arrays, Arrays]:
    with (root / "digits.npz").open("rb") as file, np.load(file) as shipped:
        # UCI's pixels are 0 … 16.
        images = np.rint(shipped["images"] * (255 / 16)).astype(np.uint8)[:, None]
        labels = shipped["labels"].astype(np.int64)
    # Every fifth of each class validates: the file has runs of one writer, so this mixes writers.
    nth = np.empty_like(labels)
    for label in range(10):
        nth[labels == label] = np.arange((labels == label).sum())
    held_out = nth % 5 == 4
    return Arrays(images[~held_out], labels[~held_out]), Arrays(images[held_out], labels[held_out])


def _fashion_mnist(root: Path) -> tuple[Arrays, Arrays]:
    def split(name: str) -> Arrays:
        images = _idx(root / f"{name}-images-idx3-ubyte.gz")
        return Arrays(images[:, None], _idx(root / f"{name}-labels-idx1-ubyte.gz").astype(np.int64))

    return split("train"), split("t10k")


def _idx(path: Path) -> NDArray[np.uint8]:
    with gzip.open(path) as file:
        raw = file.read()
    # The fourth byte of the header is the number of dimensions; their big-endian sizes follow it.
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    # A copy, since an array over bytes is read-only, of which torch warns.
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()


def _cifar10(root: Path) -> tuple[Arrays, Arrays]:
    if (root / "train.npz").exists():
        return _packed_jpegs(root / "train.npz"), _packed_jpegs(root / "test.npz")
    folder = root / "cifar-10-batches-py" if (root / "cifar-10-batches-py").is_dir() else root
    parts = [_cifar_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    train = Arrays(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
    return train, _cifar_batch(folder / "test_batch")


class _ArraysOnly(pickle.Unpickler):
    """CIFAR-10 comes as pickles, which may run any code; these may make arrays and nothing else."""

    makers: ClassVar[dict[tuple[str, str], str]] = {
        ("numpy.core.multiarray", "_reconstruct"): "numpy._core.multiarray",
        ("numpy._core.multiarray", "_reconstruct"): "numpy._core.multiarray",
        ("numpy", "ndarray"): "numpy",
        ("numpy", "dtype"): "numpy",
        ("_codecs", "encode"): "_codecs",
    }

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in self.makers:
            return super().find_class(self.makers[module, name], name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _cifar_batch(path: Path) -> Arrays:
    with path.open("rb") as file:
        batch = _ArraysOnly(file, encoding="bytes").load()
    return Arrays(batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"], np.int64))


def _packed_jpegs(path: Path) -> Arrays:
    """An npz of JPEG files laid end to end: data (bytes), offsets (images + 1), labels."""
    with path.open("rb") as file, np.load(file) as packed:
        data, offsets, labels = packed["data"].tobytes(), packed["offsets"], packed["labels"]
    images = [
        np.asarray(Image.open(io.BytesIO(data[begin:end])).convert("RGB"))
        for begin, end in pairwise(offsets)
    ]
    return Arrays(np.stack(images).transpose(0, 3, 1, 2), labels.astype(np.int64))
