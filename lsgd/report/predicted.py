"""The sections of a report on the predictions of its runs on their validation images."""

import base64
import io
import shlex
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lsgd.report.blocks import Block, Figures, Table
from lsgd.report.drawing import Figure, draw_figure
from lsgd.report.findings import Findings
from lsgd.report.run_archive import displayed_path
from lsgd.run.read import Run
from lsgd.run.validation_predictions import (
    MAX_TABLE_CLASSES,
    PREDICTIONS,
    THUMBNAIL_SIDE,
    ValidationPredictions,
    read_predictions,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "worst-images"
"""The beginning of the names of the figures with worst images."""
COLUMNS = 5
"""The images in a row of such a figure."""
CELL = (THUMBNAIL_SIDE + 40, THUMBNAIL_SIDE + 16)
"""The height and width of an image in the figure with its labels, in pixels."""
MAX_LABEL = 14
"""The maximum number of characters of a class name in the figure."""

OWN_IMAGES = "folder"
"""The name of the dataset that is a folder of the user's own images."""


def draw_worst_images(findings: Findings) -> list[Figure]:
    """Draw the worst validation images of each run of a report that has predicted them."""
    return [
        _draw_worst(f"{FIGURE}-{number}", predictions)
        for number, (_, predictions) in enumerate(_predicted(findings))
        if isinstance(predictions, ValidationPredictions) and predictions.worst
    ]


def _draw_worst(name: str, predictions: ValidationPredictions) -> Figure:
    """Draw the worst images of one run, each below its class and above the predicted one."""
    height, width = CELL
    rows = -(-len(predictions.worst) // COLUMNS)
    names = [
        each if len(each) <= MAX_LABEL else f"{each[: MAX_LABEL - 1]}…"
        for each in predictions.class_names
    ]

    def plot(axes: "Axes") -> None:
        for number, image in enumerate(predictions.worst):
            row, column = divmod(number, COLUMNS)
            pixels = _pixels(image.thumbnail)
            middle, centre = row * height + height / 2, column * width + width / 2
            up, left = pixels.shape[0] / 2, pixels.shape[1] / 2
            extent = (centre - left, centre + left, middle + up, middle - up)
            axes.imshow(pixels, extent=extent)
            top, bottom = middle - THUMBNAIL_SIDE / 2 - 3, middle + THUMBNAIL_SIDE / 2 + 12
            axes.text(centre, top, names[image.label], ha="center", fontsize=6)
            predicted = f"as {names[image.predicted]}"
            axes.text(centre, bottom, predicted, ha="center", fontsize=6)
        axes.set_xlim(0, COLUMNS * width)
        axes.set_ylim(rows * height, 0)
        axes.axis("off")

    title = "Worst validation images"
    alt = (
        f"The {len(predictions.worst)} validation images to whose class the network gives the "
        "lowest probabilities, each below its class and above the predicted class"
    )
    return draw_figure(name, title, alt, plot, height=4.4 * rows * height / (COLUMNS * width))


def _pixels(thumbnail: str) -> NDArray[np.uint8]:
    """Decode a thumbnail from a run folder, which may be anybody's; a grey square if it is none."""
    try:
        content = io.BytesIO(base64.b64decode(thumbnail, validate=True))
        with Image.open(content, formats=["JPEG"]) as image:
            if max(image.size) <= THUMBNAIL_SIDE:
                return np.asarray(image.convert("RGB"))
    except Exception:  # a decoder may raise any error on bytes that are not in the expected format
        pass
    return np.full((THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3), 128, np.uint8)


def validation_blocks(findings: Findings, figures: list[Figure]) -> list[Block]:
    """Return the confusion table and the worst images of each run that has predicted its set.

    `figures` are those of the report.
    """
    blocks: list[Block] = []
    for number, (run, predictions) in enumerate(_predicted(findings)):
        if isinstance(predictions, str):
            blocks.append(f"`{run.path / PREDICTIONS}` cannot be used: {predictions}.")
            continue
        blocks += _blocks(run, predictions)
        drawn = [figure for figure in figures if figure.name == f"{FIGURE}-{number}"]
        blocks += [Figures(drawn, large=True)] if drawn else []
    return blocks


def _predicted(findings: Findings) -> list[tuple[Run, ValidationPredictions | str]]:
    """Return the runs whose folders have predictions, with these or why they cannot be used."""
    found: list[tuple[Run, ValidationPredictions | str]] = []
    for run in _runs(findings):
        try:
            predictions = read_predictions(run.path)
        except ValueError as error:
            found.append((run, str(error)))
            continue
        if predictions:
            known = (run.recipe.fingerprint, run.recipe.earlier_fingerprint)
            is_of_run = predictions.fingerprint in known
            found.append((run, predictions if is_of_run else "it is of another run"))
    return found


def _blocks(run: Run, predictions: ValidationPredictions) -> list[Block]:
    """Return the sentences and tables on the validation images of one run."""
    wrong, images = predictions.wrong, predictions.images
    many = len(predictions.class_names) > MAX_TABLE_CLASSES
    shown = "The most frequent confusions" if many else "The images by class and predicted class"
    return [
        f"`{run.path}` after step {predictions.step}: {wrong} of {images} validation images are "
        f"predicted as another class. {shown}:",
        Table(*predictions.confusion_table()),
        "The images to whose class the network gives the lowest probabilities; some may be in the "
        "wrong folder:",
        Table(*predictions.worst_table()),
    ]


def validation_command(findings: Findings) -> list[str]:
    """Return an item with the command that adds predictions to this report, or no item.

    It names the first finished run on a folder of images that has none.
    """
    for run in _runs(findings):
        own = run.recipe.data.name == OWN_IMAGES and run.recipe.inputs.loader != "synthetic"
        # An archive has no checkpoints to predict with.
        own = own and displayed_path(run.path) == run.path
        if own and run.finished and not (run.path / PREDICTIONS).exists():
            command = shlex.join(["python", "-m", "lsgd.predict", str(run.path), "--validation"])
            return [
                f"`{command}`, then this report again, shows its confusion table and worst images"
            ]
    return []


def _runs(findings: Findings) -> list[Run]:
    return [run for group in findings.groups for run in group.runs]
