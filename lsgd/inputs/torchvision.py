"""Image folders, decoded by PIL in worker processes and transformed by torchvision."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lsgd import augmentation
from lsgd.errors import Refused
from lsgd.inputs import Batch
from lsgd.recipe import Data
from lsgd.recipe import Inputs as Settings
from lsgd.sampler import Pass
from lsgd.vision import datasets, transforms

RESIZE = 256 / 224
"""Validation images are resized to this many times the crop: short side 256 for 224 pixels."""


class FolderInputs:
    """See Inputs; root/train/<class>/ and root/val/<class>/, classes in sorted order."""

    def __init__(
        self, data: Data, root: Path, settings: Settings, *, seed: int, pins: bool
    ) -> None:
        if data.augmentation == "shift_flip":
            raise Refused(
                "data.augmentation=shift_flip is for small images in memory; write crop_flip or "
                f"none for {data.name}"
            )
        train = _list(root, "train", data, data.train_examples)
        validation = _list(root, "val", data, data.val_examples)
        if odd := sorted(set(train.classes) ^ set(validation.classes)):
            raise Refused(
                f"{root}/train and {root}/val differ in their classes ({', '.join(odd[:3])} …); "
                "the folders of both have to have the same names"
            )
        self.train_files = _Files(train.samples, data, seed=seed)
        self.val_files = _Files(validation.samples, data, seed=seed)
        self.settings, self.pins = settings, pins

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """See Inputs."""
        return self._load(self.train_files, passes)

    def validation(self, chunks: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """See Inputs."""
        return self._load(self.val_files, chunks)

    def _load(
        self, files: "_Files", wanted: Iterable[Pass] | Iterable[NDArray[np.int64]]
    ) -> Iterator[Batch]:
        workers = self.settings.processes
        loader: DataLoader[Batch] = DataLoader(
            files,
            batch_size=None,
            # What a sampler yields goes to the dataset as it is: here a whole pass.
            sampler=wanted,
            num_workers=workers,
            prefetch_factor=self.settings.prefetch if workers else None,
            pin_memory=self.pins,
            # A fork would copy the threads and locks of the communication library half alive.
            multiprocessing_context="forkserver" if workers else None,
        )
        try:
            yield from loader
        except Refused as error:
            # A loader process sends its whole traceback, which ends in the sentence.
            sentence = str(error).splitlines()[-1].removeprefix("lsgd.errors.Refused: ")
            raise Refused(sentence, here_only=True) from None


class _Files(Dataset[Batch]):
    """The files of one split; what is asked of it is a pass or a chunk of ids, not one image."""

    def __init__(self, samples: list[tuple[str, int]], data: Data, *, seed: int) -> None:
        self.paths = [path for path, _ in samples]
        self.labels = torch.tensor([label for _, label in samples])
        self.data, self.seed = data, seed

    def __getitem__(self, wanted: Pass | NDArray[np.int64]) -> Batch:
        ids = wanted.examples if isinstance(wanted, Pass) else wanted
        images = [self._open(i) for i in ids]
        if isinstance(wanted, Pass) and self.data.augmentation == "crop_flip":
            tensors = self._crop_flip(images, wanted)
        else:
            side = self.data.image_size
            tensors = [
                self._tensor(centre_crop(self._rgb(i, image), side))
                for i, image in zip(ids, images, strict=True)
            ]
        return torch.stack(tensors), self.labels[torch.from_numpy(ids)]

    def _crop_flip(self, images: list[Image.Image], wanted: Pass) -> list[Tensor]:
        draw = {"seed": self.seed, "epoch": wanted.epoch}
        # The sizes are in the headers: no image is decoded to find its window.
        windows = augmentation.crop_windows(
            np.array([image.size for image in images]), wanted.examples, **draw
        )
        flips = augmentation.flips(wanted.examples, **draw)
        side = [self.data.image_size] * 2
        tensors = []
        for i, image, (left, top, width, height), flip in zip(
            wanted.examples, images, windows.tolist(), flips, strict=True
        ):
            resized = transforms.functional.resized_crop(
                self._rgb(i, image), top, left, height, width, side, antialias=True
            )
            tensors.append(self._tensor(transforms.functional.hflip(resized) if flip else resized))
        return tensors

    def _open(self, i: int) -> Image.Image:
        try:
            # Read whole and closed: a pass may have more images than a process may open files.
            return Image.open(io.BytesIO(Path(self.paths[i]).read_bytes()))
        except OSError as error:
            raise self._unreadable(i, error) from None

    def _rgb(self, i: int, image: Image.Image) -> Image.Image:
        try:
            return image.convert("RGB")
        except OSError as error:
            raise self._unreadable(i, error) from None

    def _unreadable(self, i: int, error: OSError) -> Refused:
        why = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        return Refused(f"{self.paths[i]} cannot be read ({why}); replace it and resume")

    def _tensor(self, image: Image.Image) -> Tensor:
        tensor = transforms.functional.to_tensor(image)
        normalised: Tensor = transforms.functional.normalize(tensor, self.data.mean, self.data.std)
        return normalised


def centre_crop(image: Image.Image, side: int) -> Image.Image:
    """Short side resized to 256/224 of `side`, then the centred square of `side` pixels."""
    resized = transforms.functional.resize(image, [round(side * RESIZE)], antialias=True)
    cropped: Image.Image = transforms.functional.center_crop(resized, [side, side])
    return cropped


def _list(root: Path, split: str, data: Data, expected: int) -> datasets.ImageFolder:
    folder = root / split
    if not folder.is_dir():
        raise Refused(
            f"no {data.name} at {root}: there is no folder {folder}; write data.root=FOLDER with "
            "train/ and val/ in it, or go on without: inputs=synthetic (made-up images), "
            "rehearse=true (the whole run in miniature), +recipe=digits (a real run on a laptop)"
        )
    try:
        listed = datasets.ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise Refused(
            f"{folder} is no image folder ({str(error).splitlines()[0]}); see data/imagenet"
        ) from None
    for name, found, wanted in (
        ("classes", len(listed.classes), data.classes),
        (f"{split}_examples", len(listed.samples), expected),
    ):
        if found != wanted:
            raise Refused(
                f"data.{name}={wanted} but {folder} has {found}; complete it, or write "
                f"data.{name}={found} for another trajectory"
            )
    return listed
