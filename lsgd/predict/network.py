"""The network of a run on image folders, and its predictions on images and on its validation set.

Images are resized, cropped to the square of data.image_size and normalised as in the run's last
evaluation, and the network is the one that the run evaluated: with averaged weights and measured BN
statistics, if the recipe has them.
"""

import base64
import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lsgd.comm.single import SingleComm
from lsgd.errors import InputFailedError, UsageError
from lsgd.evaluation import TrainedModel
from lsgd.inputs import IN_MEMORY_DATASETS, Inputs
from lsgd.inputs.decoding import load_image
from lsgd.inputs.index import ImageIndex, open_indexes
from lsgd.inputs.pixels import Normalise
from lsgd.job.device import choose_kernels, pick_device, run_compiled_modules_eagerly
from lsgd.job.launcher import cores, detect_launch
from lsgd.predict.loose_images import decode_images
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.validation_predictions import (
    THUMBNAIL_SIDE,
    WORST_IMAGES,
    ValidationPredictions,
    WorstImage,
)
from lsgd.trained_model import LazyInputs, build_trained, load_class_names, load_trained
from lsgd.workloads import is_finite_output
from lsgd.workloads.images import ImageClassification, ranked_labels

DIGITS = 6
"""The decimals of a probability in the output."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, by label, with their probabilities."""

    labels: list[int]
    probabilities: list[float]


@dataclass(frozen=True)
class ImageClassifier:
    """A trained image network with its recipe, its checkpoint and the names of its classes."""

    recipe: Recipe
    checkpoint: Checkpoint
    trained: TrainedModel
    class_names: list[str]
    """The names of the classes by label, or their numbers if the names are unknown."""

    @property
    def workload(self) -> ImageClassification:
        """The workload of the network, which computes its logits."""
        assert isinstance(self.trained.workload, ImageClassification)
        return self.trained.workload

    def predict(
        self, paths: Sequence[Path], top: int
    ) -> list[tuple[Path, Prediction | InputFailedError]]:
        """Return each image's `top` most probable classes in order, or why it cannot be read."""
        data, size = self.recipe.data, self.recipe.val_batch
        normalise = Normalise(data, self.trained.device)
        decoded = decode_images(paths, data, cores(detect_launch()))
        outcomes: list[Prediction | InputFailedError] = []
        with self._evaluation_mode():
            while chunk := list(islice(decoded, size)):
                readable = [pixels for pixels in chunk if isinstance(pixels, np.ndarray)]
                predictions: Iterator[Prediction] = iter(())
                if readable:
                    stacked = torch.from_numpy(np.stack(readable)).permute(0, 3, 1, 2)
                    predictions = self._top(normalise(stacked), top)
                outcomes += [
                    pixels if isinstance(pixels, InputFailedError) else next(predictions)
                    for pixels in chunk
                ]
        return [(path, _finite(path, each)) for path, each in zip(paths, outcomes, strict=True)]

    def predict_validation(self) -> ValidationPredictions:
        """Predict the class of every validation image of the run; return confusions and the worst.

        Raises UsageError if the data are missing, or are not those that the run was trained on.
        """
        inputs = self._lazy_inputs().open_inputs()
        passes = self.workload.evaluation_micro_batches("val", 0, 1)
        parts: list[Tensor] = []
        with self._evaluation_mode(inputs):
            for images, labels in inputs.evaluation(passes):
                guesses, probabilities = self._ranked(images, 1)
                own = probabilities.gather(1, labels.to(probabilities.device)[:, None])
                best = probabilities.gather(1, guesses)
                columns = (labels, guesses[:, 0], own[:, 0], best[:, 0])
                parts.append(torch.stack([column.cpu().double() for column in columns]))
        label, predicted, own_probability, probability = torch.cat(parts, 1).numpy()
        examples = np.concatenate([each.examples for each in passes])
        if lost := int(np.isnan(probability).sum()):
            raise UsageError(
                f"the output of the network is not finite for {lost} of {len(examples)} validation "
                "images, of which it predicts no class; `python -m lsgd.evaluate RUN --per-class` "
                "counts them by class"
            )
        pairs, images_of_pair = np.unique(
            np.stack((label, predicted)).astype(np.int64), axis=1, return_counts=True
        )
        _, index = open_indexes(self.recipe.data, self.recipe.data.folder)
        worst = [
            WorstImage(
                os.fsdecode(index.paths(examples[[place]])[0]),
                int(label[place]),
                round(float(own_probability[place]), DIGITS),
                int(predicted[place]),
                round(float(probability[place]), DIGITS),
                _thumbnail(index, int(examples[place])),
            )
            for place in np.argsort(own_probability, kind="stable")[:WORST_IMAGES].tolist()
        ]
        return ValidationPredictions(
            self.checkpoint.fingerprint,
            self.checkpoint.step,
            self.class_names,
            list(zip(*pairs.tolist(), images_of_pair.tolist(), strict=True)),
            worst,
        )

    def _top(self, images: Tensor, top: int) -> Iterator[Prediction]:
        """Return an iterator over the `top` most probable classes of each normalised image."""
        labels, probabilities = self._ranked(images, top)
        return map(Prediction, labels.tolist(), probabilities.gather(1, labels).tolist())

    def _ranked(self, images: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Return the `top` most probable labels of normalised images, and all probabilities.

        Both have a row for each image. The probabilities of one for which the network's output is
        not finite are NaN.
        """
        logits = self.workload.logits(self.trained.model, images)
        probabilities = logits.float().softmax(1)
        is_finite = is_finite_output(logits)[:, None]
        return ranked_labels(logits, top), probabilities.where(is_finite, torch.nan)

    def _lazy_inputs(self) -> LazyInputs:
        return LazyInputs(self.workload.inputs, self.checkpoint.data, self.trained.epoch)

    @contextmanager
    def _evaluation_mode(self, inputs: Inputs | None = None) -> Iterator[None]:
        """Set the network to evaluation, with this loader or one that is opened if it is needed."""
        model, workload = self.trained.model, self.workload
        inputs = inputs or self._lazy_inputs()
        eagerly = run_compiled_modules_eagerly()
        with torch.inference_mode(), eagerly, workload.evaluation_mode(model, inputs):
            model.eval()
            yield


def _finite(path: Path, outcome: Prediction | InputFailedError) -> Prediction | InputFailedError:
    """Return an image's prediction, or an error if its probabilities are not finite."""
    if isinstance(outcome, InputFailedError) or math.isfinite(outcome.probabilities[0]):
        return outcome
    return InputFailedError(f"{path} has no prediction (the network's output is not finite)")


def _thumbnail(index: ImageIndex, example: int) -> str:
    """Return an indexed image as a small JPEG in base64."""
    image, content = load_image(index, example), io.BytesIO()
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    image.save(content, "JPEG")
    return base64.b64encode(content.getvalue()).decode()


def load_classifier(path: Path, overrides: Sequence[str]) -> ImageClassifier:
    """Load the image network of a run folder or a checkpoint, with the names of its classes.

    Raises UsageError if it is no complete checkpoint, or not of a run on an image folder.
    """
    recipe, saved = load_trained(path, overrides, remedy="give another checkpoint of lsgd")
    remedy = "give a run on a folder of images"
    check_supported(recipe, "lsgd.predict", remedy, workloads=("images",))
    if recipe.data.name in IN_MEMORY_DATASETS or recipe.inputs.loader == "synthetic":
        data = recipe.data.name
        images = "made-up images" if data not in IN_MEMORY_DATASETS else f"{data}, stored as arrays"
        raise UsageError(
            f"lsgd.predict needs a network of image files, and {path} is of {images}; {remedy}"
        )
    if recipe.inputs.is_own:
        raise UsageError(
            f"lsgd.predict prepares images as the loaders of lsgd do, and {path} was trained and "
            f"evaluated with inputs={recipe.inputs.loader}; {remedy}"
        )
    device = pick_device(recipe.device)
    choose_kernels(device, precision=recipe.precision, deterministic=recipe.deterministic)
    epoch = recipe.epoch_before(saved.step)
    trained = build_trained(
        recipe, str(path), saved.model, saved.parts, SingleComm(), device, epoch
    )
    numbers = [str(label) for label in range(recipe.data.classes)]
    return ImageClassifier(recipe, saved, trained, load_class_names(path, recipe) or numbers)
