"""The predictions on validation images in a report: confusions, worst images, damaged files."""

import base64
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.run_folders import write_finished_run
from PIL import Image

from lsgd.report.blocks import Figures, Section, Table
from lsgd.report.content import compose
from lsgd.report.findings import compute_findings
from lsgd.report.predicted import _pixels, draw_worst_images
from lsgd.run.read import read_run
from lsgd.run.validation_predictions import (
    PREDICTIONS,
    ValidationPredictions,
    WorstImage,
    read_predictions,
    write_predictions,
)


def thumbnail(colour: str, side: int = 64) -> str:
    content = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(content, "JPEG")
    return base64.b64encode(content.getvalue()).decode()


WORST = [
    WorstImage("val/b/<i>.jpg", 1, 0.001, 0, 0.999, thumbnail("red")),
    WorstImage("val/a/1.jpg", 0, 0.4, 2, 0.5, "no image"),
]
MADE = ValidationPredictions(
    "", 9, ["a", "b", "c"], [(0, 0, 5), (0, 2, 1), (1, 0, 3), (1, 1, 1), (2, 2, 4)], WORST
)


def sections(run: Path) -> dict[str, Section]:
    """Return the sections of the report on one run, by title."""
    findings = compute_findings([read_run(run)], [], None)
    drawn = draw_worst_images(findings)
    return {each.title: each for each in compose(findings, drawn, "x", "1").sections}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)


def test_a_report_shows_the_predictions_of_its_run(run: Path) -> None:
    assert "Validation images" not in sections(run)
    write_predictions(run, replace(MADE, fingerprint=read_run(run).recipe.fingerprint))
    text, confusions, _, worst, pictures = sections(run)["Validation images"].blocks
    assert "4 of 14 validation images are predicted as another class" in str(text)
    assert confusions == Table(
        ["class", "as a", "as b", "as c", "error, %"],
        [
            ["a", "5", "0", "1", "16.7"],
            ["b", "3", "1", "0", "75.0"],
            ["c", "0", "0", "4", "0.0"],
        ],
    )
    assert isinstance(worst, Table)
    assert worst.rows[0] == ["val/b/<i>.jpg", "0.1", "b", "a", "99.9"]
    assert isinstance(pictures, Figures)
    (figure,) = pictures.figures
    assert "<image " in figure.svg
    shown = np.asarray(Image.open(io.BytesIO(figure.png)).convert("RGB")).reshape(-1, 3).astype(int)
    assert (shown == 128).all(1).any()  # in place of what is no image
    assert (np.abs(shown - (254, 0, 0)) < 4).all(1).any()


@pytest.mark.parametrize("thumbnail", ["", "é", "AAAA", thumbnail("red", 65)])
def test_a_thumbnail_that_is_none_is_a_grey_square(thumbnail: str) -> None:
    assert _pixels(thumbnail).shape == (64, 64, 3)
    assert (_pixels(thumbnail) == 128).all()


def test_many_classes_have_a_list_of_confusions() -> None:
    """The most frequent first; a table of 100 columns cannot be read."""
    names = [f"n{label}" for label in range(100)]
    many = replace(MADE, class_names=names)
    head, rows = many.confusion_table()
    assert head == ["class", "predicted as", "images", "% of the class"]
    assert rows == [["n1", "n0", "3", "75.0"], ["n0", "n2", "1", "16.7"]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"class_names": ["a", "b"]}, "the number of a class that it does not name"),
        ({"step": "9"}, "it.step=9 is not a whole number"),
        ({"worst": [{"path": "a"}]}, "missing values: it.worst"),
        ({"confusions": [[0, 0, 10**4000]]}, "a number of images is not between 1 and"),
        ({"worst": 21 * [asdict(WORST[0])]}, "it has more than 20 worst images"),
        ({"more": 1}, "there is no key 'it.more'"),
        ({}, "it is of another run"),
    ],
)
def test_a_file_that_is_not_of_the_run_is_named(change: dict, why: str, run: Path) -> None:
    write_predictions(run, MADE)
    written = json.loads((run / PREDICTIONS).read_text())
    (run / PREDICTIONS).write_text(json.dumps(written | change))
    (sentence,) = sections(run)["Validation images"].blocks
    assert re.match(r"`.*validation.json` cannot be used: ", str(sentence))
    assert why in str(sentence)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_predictions(tmp_path) is None
    write_predictions(tmp_path, MADE)
    assert read_predictions(tmp_path) == MADE


def test_a_run_on_own_images_is_told_how_to_get_them(tmp_path: Path) -> None:
    """Not one on a published set, whose classes nobody here has made."""
    counts = ("data.classes=3", "data.train_examples=600", "data.val_examples=60", "epochs=9")
    words = ("data=folder", *counts, "schedule.milestones=[3]")
    own = write_finished_run(tmp_path, "bs256", 0, 8.0, *words)
    (shown,) = sections(own)["Next steps"].blocks
    assert f"python -m lsgd.predict {own} --validation" in str(shown)
    write_predictions(own, replace(MADE, fingerprint=read_run(own).recipe.fingerprint))
    assert "lsgd.predict" not in str(sections(own).get("Next steps"))
    published = write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    assert "lsgd.predict" not in str(sections(published).get("Next steps"))
