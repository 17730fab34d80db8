import gzip
import hashlib
import io
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.inputs import arrays
from lsgd.inputs.arrays import load_arrays
from lsgd.recipe import Data

FASHION = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


SHAPES = {"digits": (1, 8), "fashion-mnist": (1, 28), "cifar10": (3, 32)}


def data(name: str, train: int = 10, val: int = 4) -> Data:
    channels, side = SHAPES[name]
    return Data(name, train, val, 10, channels, side, [0.5], [0.5], augmentation="none")


def random_images(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    """The file format of MNIST."""
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def make_fashion(root: Path, train: int = 10, val: int = 4) -> list[NDArray[np.uint8]]:
    """The four files with made-up content, which is returned."""
    arrays = [
        random_images(train, 28, 28),
        np.arange(train, dtype=np.uint8) % 10,
        random_images(val, 28, 28) // 2,
        9 - np.arange(val, dtype=np.uint8) % 10,
    ]
    for name, array in zip(FASHION, arrays, strict=True):
        (root / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return arrays


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote str, as in the official files."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_str_of_python2(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_str_of_python2


def python2_pickle(value: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def make_cifar(root: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The official layout with 2 images per batch and 4 to validate, which are returned."""
    train, val = random_images(10, 3, 32, 32), random_images(4, 3, 32, 32) // 2
    batches = {f"data_batch_{i + 1}": (train[2 * i : 2 * i + 2], [i, 9 - i]) for i in range(5)}
    batches["test_batch"] = (val, [3, 1, 4, 1])
    for name, (images, labels) in batches.items():
        content = {
            b"batch_label": b"made",
            b"data": images.reshape(len(images), -1),
            b"labels": labels,
        }
        (root / name).write_bytes(python2_pickle(content))
    return train, val


def make_npz(path: Path, images: list[Image.Image], labels: list[int]) -> None:
    files = []
    for image in images:
        image.save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    np.savez(
        path,
        data=np.frombuffer(b"".join(files), np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
        labels=np.array(labels, np.uint8),
    )


# --- What is read ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_digits_are_scikit_learns() -> None:
    """Value by value, in the same order."""
    sklearn = pytest.importorskip("sklearn.datasets")
    bundled = sklearn.load_digits()
    with np.load(paths.digits_dir() / "digits.npz") as ours:
        assert np.array_equal(ours["images"], bundled.images)
        assert np.array_equal(ours["labels"], bundled.target)


def test_digits_are_those_of_every_run_so_far() -> None:
    """Bytes, types and order, as they were when scikit-learn handed them out."""
    found = hashlib.sha256()
    for part in load_arrays(data("digits", 1442, 355), Path("nowhere")):
        assert (part.images.dtype, part.labels.dtype) == (np.uint8, np.int64)
        found.update(part.images.tobytes() + part.labels.tobytes())
    assert found.hexdigest() == "3baeb8053ef4be8b3373d48b5836a8071b23b35e392d6068b06c37e50f02811d"


def test_fashion_mnist_files(tmp_path: Path) -> None:
    made = make_fashion(tmp_path)
    train, val = load_arrays(data("fashion-mnist"), tmp_path)
    assert np.array_equal(train.images, made[0][:, None])
    assert np.array_equal(train.labels, made[1])
    assert np.array_equal(val.images, made[2][:, None])
    assert np.array_equal(val.labels, made[3])
    assert train.labels.dtype == np.int64
    # torch warns of memory that it may not write to.
    assert np.ascontiguousarray(train.images).flags.writeable


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-py"])
def test_official_cifar_files(tmp_path: Path, folder: str) -> None:
    """Pickles of Python 2, unpacked with or without the folder that the archive has."""
    (tmp_path / folder).mkdir(exist_ok=True)
    made = make_cifar(tmp_path / folder)
    train, val = load_arrays(data("cifar10"), tmp_path)
    assert np.array_equal(train.images, made[0])
    assert train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert np.array_equal(val.images, made[1])
    assert np.ascontiguousarray(train.images).flags.writeable
    assert val.labels.tolist() == [3, 1, 4, 1]


def test_packed_cifar_files(tmp_path: Path) -> None:
    images = [Image.fromarray(pixels) for pixels in random_images(10, 32, 32, 3)]
    images[3] = images[3].convert("L")
    make_npz(tmp_path / "train.npz", images, list(range(10)))
    make_npz(tmp_path / "test.npz", images[:4], [5, 6, 7, 8])
    train, val = load_arrays(data("cifar10"), tmp_path)
    expected = np.stack([np.asarray(image.convert("RGB")) for image in images])
    assert np.array_equal(train.images, expected.transpose(0, 3, 1, 2))
    assert train.labels.tolist() == list(range(10))
    assert val.labels.tolist() == [5, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.data
def test_real_fashion_mnist(test_data: Path) -> None:
    train, val = load_arrays(data("fashion-mnist", 60_000, 10_000), test_data / "fashion-mnist")
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(val.labels).tolist() == [1000] * 10
    # The mean and standard deviation in conf/data.
    assert train.images.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert train.images.std() / 255 == pytest.approx(0.3530, abs=5e-5)


# --- What is refused -------------------------------------------------------------------------

Make = Callable[[Path], object]


def refusal(name: str, root: Path) -> str:
    with pytest.raises(UsageError) as refused:
        load_arrays(data(name), root)
    return str(refused.value)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_missing_dataset_is_refused_with_help(tmp_path: Path, name: str) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        message = refusal(name, root)
        assert f"no {name} at {root}" in message
        assert f"fetch it with python -m lsgd.prepare {name} {root}," in message
        assert "data.root=FOLDER" in message
        assert "inputs=synthetic" in message


@pytest.mark.parametrize(
    ("name", "make", "file"),
    [
        ("fashion-mnist", make_fashion, f"{FASHION[2]}-ubyte.gz"),
        ("cifar10", make_cifar, "test_batch"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, make: Make, file: str) -> None:
    make(tmp_path)
    (tmp_path / file).unlink()
    assert str(tmp_path / file) in refusal(name, tmp_path)


def test_other_numbers_of_images_are_refused(tmp_path: Path) -> None:
    make_fashion(tmp_path, train=9)
    assert "data.train_examples=10 but fashion-mnist" in refusal("fashion-mnist", tmp_path)
    make_fashion(tmp_path, val=5)
    message = refusal("fashion-mnist", tmp_path)
    assert f"data.val_examples=4 but fashion-mnist at {tmp_path} has 5" in message


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("classes", 9, "10; complete it, or write data.classes=10"),
        ("channels", 3, "1, and its images are used as they are; write data.channels=1"),
        ("image_size", 32, "28, and its images are used as they are; write data.image_size=28"),
    ],
)
def test_images_of_another_kind_are_refused(
    tmp_path: Path, key: str, value: int, found: str
) -> None:
    make_fashion(tmp_path)
    other = replace(data("fashion-mnist"), **{key: value})
    with pytest.raises(UsageError, match=f"data.{key}={value} but fashion-mnist at .* has {found}"):
        load_arrays(other, tmp_path)


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def not_deflated(content: bytes) -> bytes:
    """A gzip header, behind which comes what is no compressed block."""
    return content[:10] + b"\x07" + content[11:]


def flipped(content: bytes) -> bytes:
    """A byte in the middle changed, which the check sum shows."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def make_packed(root: Path) -> None:
    images = [Image.fromarray(pixels) for pixels in random_images(10, 32, 32, 3)]
    make_npz(root / "train.npz", images, list(range(10)))
    make_npz(root / "test.npz", images[:4], [5, 6, 7, 8])


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "make", "file", "damage"),
    [
        ("fashion-mnist", make_fashion, IMAGES, first_half),
        ("fashion-mnist", make_fashion, IMAGES, flipped),
        ("fashion-mnist", make_fashion, IMAGES, not_deflated),
        ("fashion-mnist", make_fashion, LABELS, lambda _: gzip.compress(b"")),
        ("cifar10", make_cifar, "data_batch_2", first_half),
        ("cifar10", make_cifar, "data_batch_2", lambda _: pickle.dumps([1, 2])),
        ("cifar10", make_packed, "test.npz", flipped),
        ("cifar10", make_packed, "test.npz", lambda _: b""),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, name: str, make: Make, file: str, damage: Callable[[bytes], bytes]
) -> None:
    make(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    assert f"{name} at {tmp_path} cannot be read" in refusal(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "make", "file"),
    [("fashion-mnist", make_fashion, IMAGES), ("cifar10", make_packed, "test.npz")],
)
def test_what_has_no_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Make, file: str
) -> None:
    """A bomb, and a pipe to which nobody writes."""
    make(tmp_path)
    monkeypatch.setattr(arrays, "MAX_UNPACKED_BYTES", 500)
    assert "has more than 500 bytes" in refusal(name, tmp_path)
    monkeypatch.undo()
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    assert "cannot be read" in refusal(name, tmp_path)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    """Training would stop at the first example without an image, or go on without the last ones."""
    make_fashion(tmp_path)
    fewer = idx(random_images(9, 28, 28))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(fewer))
    assert str(tmp_path) in refusal("fashion-mnist", tmp_path)


class Runs:
    """Unpickled, it makes a folder, through any function that will."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("through", ["os", "numpy"])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, through: str) -> None:
    """It comes from the internet; numpy has functions, too, that run what they are given."""
    executed = tmp_path / "executed"
    calls = {
        "os": Runs(os.mkdir, str(executed)),
        "numpy": Runs(np.testing.runstring, f"import os; os.mkdir({str(executed)!r})", {}),
    }
    make_cifar(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(calls[through]))
    message = refusal("cifar10", tmp_path)
    assert not executed.exists()
    assert "it refers to" in message


def test_a_pickle_whose_table_would_take_all_memory_is_refused(tmp_path: Path) -> None:
    """Its object is number 1,476,489,569: C's unpickler makes a table of 23 GB for it."""
    make_cifar(tmp_path)
    put = pickle.EMPTY_DICT + pickle.LONG_BINPUT + struct.pack("<I", 1_476_489_569)
    (tmp_path / "data_batch_1").write_bytes(pickle.PROTO + b"\2" + put + pickle.STOP)
    assert "gives an object the number 1476489569" in refusal("cifar10", tmp_path)
