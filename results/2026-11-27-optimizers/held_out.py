"""Write Fashion-MNIST with a validation set held out of its training set, in another folder.

    python held_out.py FASHION_MNIST FOLDER

Every sixth image of each class of the 60,000 training images is held out, 1,000 of each class. The
folder has the other 50,000 as its training set and the 10,000 in the place of the test set.
"""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read(path: Path) -> NDArray[np.uint8]:
    """Return the array of an idx file."""
    content = gzip.decompress(path.read_bytes())
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def write(path: Path, array: NDArray[np.uint8]) -> None:
    """Write an array of bytes as an idx file."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


def divide(source: Path, folder: Path) -> None:
    """Write the divided training set of `source` into `folder`."""
    images = read(source / "train-images-idx3-ubyte.gz")
    labels = read(source / "train-labels-idx1-ubyte.gz")
    held_out = np.zeros(len(labels), bool)
    for label in range(10):
        held_out[np.flatnonzero(labels == label)[5::6]] = True
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", ~held_out), ("t10k", held_out)):
        write(folder / f"{name}-images-idx3-ubyte.gz", images[chosen])
        write(folder / f"{name}-labels-idx1-ubyte.gz", labels[chosen])


if __name__ == "__main__":
    divide(*map(Path, sys.argv[1:]))
