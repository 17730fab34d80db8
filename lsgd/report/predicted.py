"""The sections of a report on the predictions of its runs on their validation images."""

import shlex

from lsgd.report.blocks import Block, Table
from lsgd.report.findings import Findings
from lsgd.run.read import Run
from lsgd.run.validation_predictions import (
    MAX_TABLE_CLASSES,
    PREDICTIONS,
    ValidationPredictions,
    read_predictions,
)

OWN_IMAGES = "folder"
"""The name of the dataset that is a folder of the user's own images."""


def validation_blocks(findings: Findings) -> list[Block]:
    """Return the confusion table and the worst images of each run that has predicted its set."""
    blocks: list[Block] = []
    for run in _runs(findings):
        try:
            predictions = read_predictions(run.path)
        except ValueError as error:
            blocks.append(f"`{run.path / PREDICTIONS}` cannot be used: {error}.")
            continue
        if predictions is None:
            continue
        if predictions.fingerprint not in (run.recipe.fingerprint, run.recipe.earlier_fingerprint):
            blocks.append(f"`{run.path / PREDICTIONS}` cannot be used: it is of another run.")
            continue
        blocks += _blocks(run, predictions)
    return blocks


def _blocks(run: Run, predictions: ValidationPredictions) -> list[Block]:
    """Return the blocks on the validation images of one run."""
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
        if own and run.finished and not (run.path / PREDICTIONS).exists():
            command = shlex.join(["python", "-m", "lsgd.predict", str(run.path), "--validation"])
            return [
                f"`{command}`, then this report again, shows its confusion table and worst images"
            ]
    return []


def _runs(findings: Findings) -> list[Run]:
    return [run for group in findings.groups for run in group.runs]
