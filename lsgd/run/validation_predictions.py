"""The predictions of a run's network on its validation images: confusions and worst images.

`lsgd predict RUN --validation` writes them into the run folder, and a report on the run shows them.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from lsgd.files import atomic_write
from lsgd.typed import convert_json
from lsgd.untrusted_files import parse_json, read_bounded

PREDICTIONS = "validation.json"
"""The file in a run folder with the predictions on the validation images."""
MAX_TABLE_CLASSES = 12
"""The most classes of which the confusion table has a column for each."""
MAX_CONFUSIONS = 20
"""The most pairs of classes in the list that replaces the table for more classes."""

MAX_IMAGES = 2**53
"""The limit on a number of images, below which all arithmetic on it is exact."""

WORST_IMAGES = 20
"""The number of worst images that are kept."""
THUMBNAIL_SIDE = 64
"""The longer side of a worst image's thumbnail, in pixels."""

TextTable = tuple[list[str], list[list[str]]]
"""The head and the rows of a table whose cells are text."""


@dataclass(frozen=True)
class WorstImage:
    """A validation image to whose class the network gives one of the lowest probabilities."""

    path: str
    """The path relative to the folder of the dataset."""
    label: int
    probability: float
    """The probability that the network gives to the image's class."""
    predicted: int
    predicted_probability: float
    thumbnail: str
    """The image as a JPEG of at most THUMBNAIL_SIDE pixels a side, in base64."""


@dataclass(frozen=True)
class ValidationPredictions:
    """The predictions of a network on all validation images of its run."""

    fingerprint: str
    step: int
    """The number of steps after which the network was saved."""
    class_names: list[str]
    confusions: list[tuple[int, int, int]]
    """The label, the predicted label and the number of such images, without zeros."""
    worst: list[WorstImage]
    """The worst images, the lowest probability of its class first."""

    @property
    def images(self) -> int:
        """The number of validation images."""
        return sum(images for _, _, images in self.confusions)

    @property
    def wrong(self) -> int:
        """The number of validation images whose predicted class is not their class."""
        return sum(images for label, predicted, images in self.confusions if label != predicted)

    def confusion_table(self) -> TextTable:
        """Return the numbers of images by class and predicted class, with the error of each class.

        With more than MAX_TABLE_CLASSES classes it has the most frequent confusions instead.
        """
        names, counts = self.class_names, Counter[tuple[int, int]]()
        totals = Counter[int]()
        for label, predicted, images in self.confusions:
            counts[label, predicted] += images
            totals[label] += images
        if len(names) > MAX_TABLE_CLASSES:
            wrong = [(-images, pair) for pair, images in counts.items() if pair[0] != pair[1]]
            rows = [
                [names[label], names[predicted], str(-minus), f"{-100 * minus / totals[label]:.1f}"]
                for minus, (label, predicted) in sorted(wrong)[:MAX_CONFUSIONS]
            ]
            return ["class", "predicted as", "images", "% of the class"], rows
        rows = [
            [
                name,
                *(str(counts[label, predicted]) for predicted in range(len(names))),
                f"{100 * (1 - counts[label, label] / max(1, totals[label])):.1f}",
            ]
            for label, name in enumerate(names)
        ]
        return ["class", *(f"as {name}" for name in names), "error, %"], rows

    def worst_table(self) -> TextTable:
        """Return the worst images with their class, the prediction and both probabilities."""
        names = self.class_names
        rows = [
            [
                image.path,
                f"{100 * image.probability:.1f}",
                names[image.label],
                names[image.predicted],
                f"{100 * image.predicted_probability:.1f}",
            ]
            for image in self.worst
        ]
        return ["image", "% for its class", "class", "predicted as", "% for that"], rows


def write_predictions(folder: Path, predictions: ValidationPredictions) -> Path:
    """Write the predictions on the validation images into a run folder; return the file."""
    path = folder / PREDICTIONS
    with atomic_write(path) as file:
        file.write(json.dumps(asdict(predictions)).encode() + b"\n")
    return path


def read_predictions(folder: Path) -> ValidationPredictions | None:
    """Read the predictions on the validation images in a run folder; None if there are none.

    Raises ValueError if the file is not one that write_predictions has written.
    """
    try:
        parsed = parse_json(read_bounded(folder / PREDICTIONS, follow=False))
        predictions: ValidationPredictions = convert_json(ValidationPredictions, parsed)
    except (FileNotFoundError, NotADirectoryError):  # the latter for a run in an archive
        return None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    labels = {label for *pair, _ in predictions.confusions for label in pair}
    labels |= {label for image in predictions.worst for label in (image.label, image.predicted)}
    if not labels <= set(range(len(predictions.class_names))):
        raise ValueError("it has the number of a class that it does not name")
    if len(predictions.worst) > WORST_IMAGES:
        raise ValueError(f"it has more than {WORST_IMAGES} worst images")
    if not all(0 < images < MAX_IMAGES for *_, images in predictions.confusions):
        raise ValueError(f"a number of images is not between 1 and {MAX_IMAGES}")
    return predictions
