"""Predict the classes of images with a trained network: `python -m lsgd.predict RUN IMAGE …`.

    python -m lsgd.predict runs/a photo.jpg more/                        # CSV on the screen
    python -m lsgd.predict runs/a photos/ --top 1 --to json --out a.json # JSON into a file
    python -m lsgd.predict runs/a --validation   # confusions and worst images, for the report

RUN is a run folder on images, or a checkpoint in it. A folder of images is searched at any depth.
Images are resized, cropped to the square of data.image_size and normalised as in the run's last
evaluation. A row of the CSV text has the image, and the names and probabilities of its most
probable classes. An image that cannot be read is named on stderr and left out; then the exit code
is 1.

With --validation the network predicts the run's own validation images instead. The confusion table
and the images with the lowest probability of their class are printed, and written into the run
folder, where `python -m lsgd.report` finds them.
"""

import argparse
import csv
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import config, paths
from lsgd.errors import InputFailedError, UsageError, writing_to
from lsgd.files import atomic_write, check_new_file
from lsgd.job.command import Parser, integer_from, run_alone
from lsgd.predict.loose_images import find_images
from lsgd.predict.network import DIGITS, ImageClassifier, Prediction, load_classifier
from lsgd.run.validation_predictions import PREDICTIONS, read_predictions, write_predictions
from lsgd.tables import markdown_table

DEFAULT_TOP = 5
"""The number of classes that are given for an image, if there are as many."""

Predicted = list[tuple[Path, Prediction]]
"""The images that could be read, with their most probable classes."""


def predict(options: argparse.Namespace) -> int:
    """Predict the images, or the validation set, that the command line names; return the exit code.

    The code is 1 if an image could not be read. Raises UsageError before the network is loaded.
    """
    overrides = [
        word
        for word in options.words
        if re.match(r"(\+{1,2}|~)?[\w.]+=", word) and not os.path.exists(word)
    ]
    given = [paths.parse_path(word) for word in options.words if word not in overrides]
    if options.validation:
        if given or options.out or options.to or options.top:
            raise UsageError(
                "--validation predicts the run's validation images, and writes into the run "
                "folder; leave out images, --top, --to and --out"
            )
        return _predict_validation(options.run, overrides)
    if not given:
        raise UsageError(
            "no image is given; write images or folders of images, or --validation for the "
            "validation images of the run"
        )
    if options.out:
        check_new_file(options.out, "--out")
    images = find_images(given)
    classifier = load_classifier(options.run, overrides)
    classes = len(classifier.class_names)
    top = options.top or min(DEFAULT_TOP, classes)
    if top > classes:
        raise UsageError(f"--top {top} must be at most {classes}, the number of classes")
    predicted: Predicted = []
    for path, outcome in classifier.predict(images, top):
        if isinstance(outcome, InputFailedError):
            print(f"lsgd: {outcome}; it is left out", file=sys.stderr)
        else:
            predicted.append((path, outcome))
    form = _as_json if options.to == "json" else _as_csv
    text = form(predicted, classifier.class_names, top)
    # Names that are not UTF-8 keep their bytes, but not on a screen.
    content = text.encode("utf-8", "surrogateescape")
    if options.out:
        with (
            writing_to(options.out, "write another file after --out"),
            atomic_write(options.out) as file,
        ):
            file.write(content)
        print(f"{len(predicted):,} images: {options.out}")
    elif sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        print(text, end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return int(len(predicted) < len(images))


def _predict_validation(run: Path, overrides: Sequence[str]) -> int:
    """Predict a run's validation images; print the tables and write them into its folder."""
    folder = run if run.is_dir() else run.parent
    try:
        read_predictions(folder)  # those of an earlier call are replaced
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder / PREDICTIONS} is not a file of lsgd.predict ({error}) and is not "
            "overwritten; move it away"
        ) from None
    classifier: ImageClassifier = load_classifier(run, overrides)
    predictions = classifier.predict_validation()
    with writing_to(folder, "copy the run folder and give the copy"):
        written = write_predictions(folder, predictions)
    top1 = 100 * predictions.wrong / predictions.images
    print(f"{predictions.images} images: top-1 error {top1:.2f} %\n")
    print(markdown_table(*predictions.confusion_table()), end="\n\n")
    print(markdown_table(*predictions.worst_table()), end="\n\n")
    print(f"{written}; `python -m lsgd.report {folder}` shows it")
    return 0


def _as_csv(predicted: Predicted, names: Sequence[str], top: int) -> str:
    """Format predictions as CSV: a head, and a line for each image."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = [f"{column}_{rank}" for rank in range(1, top + 1) for column in ("class", "probability")]
    writer.writerow(["image", *head])
    for path, prediction in predicted:
        row = [str(path)]
        for label, probability in zip(prediction.labels, prediction.probabilities, strict=True):
            row += [names[label], f"{probability:.{DIGITS}f}"]
        writer.writerow(row)
    return text.getvalue()


def _as_json(predicted: Predicted, names: Sequence[str], _top: int) -> str:
    """Format predictions as a JSON list with an object for each image."""
    rows = [
        {
            "image": str(path),
            "predictions": [
                {"class": names[label], "label": label, "probability": round(probability, DIGITS)}
                for label, probability in zip(
                    prediction.labels, prediction.probabilities, strict=True
                )
            ],
        }
        for path, prediction in predicted
    ]
    return json.dumps(rows, indent=1) + "\n"


def main(argv: Sequence[str]) -> int:
    """Run the command line `python -m lsgd.predict` and return its exit code."""
    parser = Parser(
        "lsgd.predict",
        __doc__,
        keys=config.override_keys,
        usage="python -m lsgd.predict RUN IMAGE|FOLDER ... [--top K] [--to csv|json] [--out FILE]",
    )
    parser.add_argument("run", type=paths.parse_path, help="a run folder, or its checkpoint.pt")
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="IMAGE|FOLDER|key=value",
        help="images, folders of images, and overrides such as device=cpu",
    )
    parser.add_argument(
        "--top", type=integer_from(1), metavar="K", help="classes per image (default: at most 5)"
    )
    parser.add_argument("--to", choices=("csv", "json"), help="the format (default: csv)")
    parser.add_path("--out", "FILE", "the file to write (default: print)")
    parser.add_argument(
        "--validation", action="store_true", help="predict the validation images of the run"
    )
    return run_alone(lambda: predict(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
