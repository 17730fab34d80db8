"""How many classes and images a folder of images has: its index says so, which a recipe goes by.

The index is a file for each split, and lsgd.inputs.index reads more of it.
"""

from pathlib import Path

import numpy as np

from lsgd.errors import Refused

SPLITS = ("train", "val")
COUNTED = ("classes", "train_examples", "val_examples")
"""The fields of a dataset that the index of a folder knows."""


def index_file(folder: Path, split: str) -> Path:
    """The file of the index of a split."""
    return folder / f"{split}.index.npy"


def prepare_command(dataset: str, root: Path, index: Path | None = None) -> str:
    """The command that makes the index of a dataset, in `index` if not in the root."""
    if any(root.glob("*.tar")) and not (root / "train").exists():
        return f"python -m lsgd.prepare {dataset} FOLDER_OF_THE_IMAGES --shards {root}"
    elsewhere = f" --index {index}" if index and index != root else ""
    return f"python -m lsgd.prepare {dataset} {root}{elsewhere}"


def counts(root: Path, index: Path | None = None) -> dict[str, int]:
    """The numbers of COUNTED of an indexed folder of images; raises Refused without an index.

    Whether the index still is that of the folder is asked when a run opens it.
    """
    make = prepare_command("folder", root, index)
    if not root.is_dir():
        raise Refused(
            f"data.root={root} is no folder; write the one that has train/CLASS/ and val/CLASS/ "
            f"with images, which `{make}` indexes"
        )
    train, val = (_size(index_file(index or root, split), make) for split in SPLITS)
    return dict(zip(COUNTED, (train[0], train[1], val[1]), strict=True))


def _size(file: Path, make: str) -> tuple[int, int]:
    """The number of classes and of images in the index of a split."""
    try:
        labels = np.load(file, mmap_mode="r")["label"]
        # Sorted by label, so that a large file need not be read for its last one.
        return int(labels[-1]) + 1, len(labels)
    except FileNotFoundError:
        raise Refused(
            f"data=folder takes its numbers of classes and images from {file}, which is missing; "
            f"run {make}"
        ) from None
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise Refused(f"{file} is no index ({error}); run {make}") from None
