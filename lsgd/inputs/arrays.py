"""Readers of small image datasets, which return whole datasets as arrays.

torchvision's readers execute code that CIFAR-10's pickles name, and read files of any size, so they
are not used.
"""

import gzip
import io
import pickle
import pickletools
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.inputs.index import prepare_command
from lsgd.recipe import Data
from lsgd.untrusted_files import check_unzipped_size, open_regular, read_bounded

_READING = Lock()
"""The lock under which a thread reads a dataset.

numpy parses the head of an array by Python's own parser, which on Python 3.11 fails if two threads
parse at once (https://github.com/python/cpython/issues/106905).
"""
MAX_UNPACKED_BYTES = 2**30
"""The largest unpacked size of a dataset's file, in bytes; known files have 200 million."""


@dataclass(frozen=True)
class ImageArrays:
    """Arrays of 8-bit images (images, channels, height, width) and of their labels (images,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_arrays(data: Data, root: Path) -> tuple[ImageArrays, ImageArrays]:
    """Read the training and validation set of a small image dataset from its folder into arrays.

    The digits are part of lsgd, so `root` is ignored for them. Raises UsageError if the dataset is
    missing, or its counts differ from the recipe's.
    """
    if data.name == "digits":
        root = paths.digits_dir()
    try:
        with _READING:
            train, validation = IN_MEMORY_DATASETS[data.name](root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"no {data.name} at {root}: {error.filename} is missing; fetch it with "
            f"{prepare_command(data.name, root)}, or write data.root=FOLDER, or inputs=synthetic "
            "to train on made-up images"
        ) from None
    except Exception as error:
        # A reader may raise any error on bytes that are not in the expected format.
        why = str(error) or type(error).__name__
        raise UsageError(f"{data.name} at {root} cannot be read ({why}); fetch it again") from None
    for part in (train, validation):
        if len(part.images) != len(part.labels):
            raise UsageError(
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
            is_of_each = name in ("channels", "image_size")
            raise UsageError(
                f"data.{name}={expected} but {data.name} at {root} has {number}"
                + (
                    f", and its images are used as they are; write data.{name}={number}"
                    if is_of_each
                    else f"; complete it, or write data.{name}={number} for another trajectory"
                )
            )
    return train, validation


def _unpacked(path: Path) -> Any:
    """Open an untrusted .npz file of arrays; raise OSError or ValueError if it is too large."""
    content = read_bounded(path, MAX_UNPACKED_BYTES)
    check_unzipped_size(content, MAX_UNPACKED_BYTES)
    return np.load(io.BytesIO(content))


def _digits(root: Path) -> tuple[ImageArrays, ImageArrays]:
    with _unpacked(root / "digits.npz") as shipped:
        # UCI's pixels are 0 to 16.
        images = np.rint(shipped["images"] * (255 / 16)).astype(np.uint8)[:, None]
        labels = shipped["labels"].astype(np.int64)
    # Every fifth image of each class is for validation: the file has runs of one writer, so this
    # mixes writers.
    nth = np.empty_like(labels)
    for label in range(10):
        nth[labels == label] = np.arange((labels == label).sum())
    held_out = nth % 5 == 4
    return ImageArrays(images[~held_out], labels[~held_out]), ImageArrays(
        images[held_out], labels[held_out]
    )


def _idx_files(root: Path) -> tuple[ImageArrays, ImageArrays]:
    def split(name: str) -> ImageArrays:
        images = _idx(root / f"{name}-images-idx3-ubyte.gz")
        labels = _idx(root / f"{name}-labels-idx1-ubyte.gz")
        return ImageArrays(images[:, None], labels.astype(np.int64))

    return split("train"), split("t10k")


def _idx(path: Path) -> NDArray[np.uint8]:
    with open_regular(path) as packed, gzip.open(packed) as file:
        raw = file.read(MAX_UNPACKED_BYTES + 1)
    if len(raw) > MAX_UNPACKED_BYTES:
        raise ValueError(f"{path.name} has more than {MAX_UNPACKED_BYTES} bytes unpacked")
    # The fourth byte of the header is the number of dimensions; their big-endian sizes follow it.
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    # A copy, since an array over bytes is read-only, and torch warns about it.
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()


def _cifar10(root: Path) -> tuple[ImageArrays, ImageArrays]:
    if (root / "train.npz").exists():
        return _packed_jpegs(root / "train.npz"), _packed_jpegs(root / "test.npz")
    folder = root / "cifar-10-batches-py" if (root / "cifar-10-batches-py").is_dir() else root
    parts = [_cifar_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    train = ImageArrays(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
    return train, _cifar_batch(folder / "test_batch")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for untrusted files, which can create numpy arrays and nothing else.

    CIFAR-10 is distributed as pickles, which may run any code.
    """

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


def _check_memo(content: bytes) -> None:
    """Raise ValueError if a pickle numbers its objects higher than it can have objects.

    The unpickler allocates a table as long as the highest number: 5 bytes can ask for all memory.
    """
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > position:  # type: ignore[operator]
            raise ValueError(f"it gives an object the number {argument} at byte {position}")


def _cifar_batch(path: Path) -> ImageArrays:
    content = read_bounded(path, MAX_UNPACKED_BYTES)
    _check_memo(content)
    batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    return ImageArrays(batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"], np.int64))


def _packed_jpegs(path: Path) -> ImageArrays:
    """Decode an .npz file of concatenated JPEG images into arrays of pixels and labels.

    Its arrays are data (bytes), offsets (images + 1) and labels.
    """
    from PIL import Image

    with _unpacked(path) as packed:
        data, offsets, labels = packed["data"].tobytes(), packed["offsets"], packed["labels"]
    images = [
        np.asarray(Image.open(io.BytesIO(data[begin:end])).convert("RGB"))
        for begin, end in pairwise(offsets)
    ]
    return ImageArrays(np.stack(images).transpose(0, 3, 1, 2), labels.astype(np.int64))


IN_MEMORY_DATASETS = {"digits": _digits, "fashion-mnist": _idx_files, "cifar10": _cifar10}
"""The datasets that fit in memory, each with the reader of its training and validation set."""
