"""Predictions of a run on a folder of images: names, probabilities, files and errors."""

import csv
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lsgd import train
from lsgd.confusion import ConfusionCounts
from lsgd.errors import InputFailedError, UsageError
from lsgd.evaluate import evaluate_path
from lsgd.predict import network
from lsgd.predict.__main__ import main
from lsgd.predict.network import load_classifier
from lsgd.prepare.indexing import index_folder
from lsgd.run.class_names import CLASSES, read_class_names
from lsgd.run.validation_predictions import read_predictions

NAMES = ["10", "9", "Zebra", "cat"]
"""The classes in the order of their labels, which is that of their characters."""
HERE = ["device=cpu", "inputs=torchvision", "inputs.decoders=0"]


def words(root: Path, run: Path) -> list[str]:
    """A run of 4 steps whose evaluation averages weights and resizes bicubically."""
    return [
        "+recipe=bs256", "data=folder", f"data.root={root}", "data.image_size=16", "workers=2",
        "worker_batch=6", "epochs=2", "schedule.milestones=[1]", "model=small_resnet",
        "val_batch=5", "averaging=ema", "averaging.half_life=1",
        "data.augmentation=fb_resnet_torch", f"run_dir={run}", *HERE,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images `own`, some of them in other modes, and the run `run` on them."""
    folder = tmp_path_factory.mktemp("predict")
    rng = np.random.default_rng(0)
    for split, each in (("train", 6), ("val", 3)):
        for label, name in enumerate(NAMES):
            (folder / "own" / split / name).mkdir(parents=True)
            for number in range(each):
                pixels = rng.normal(60 * label, 50, (30 + number, 26, 3)).clip(0, 255)
                image = Image.fromarray(pixels.astype(np.uint8))
                kind = "png" if number % 2 else "jpg"
                image = image.convert("L") if number == 2 else image
                image.save(folder / "own" / split / name / f"{number}.{kind}")
    index_folder(folder / "own")
    assert train.main(words(folder / "own", folder / "run")) == 0
    return folder


@pytest.mark.slow
def test_the_worst_images_of_rectangles_are_those_that_were_predicted(trained: Path) -> None:
    """They are evaluated in the order of their aspect ratios, not in that of the folder."""
    classifier = load_classifier(trained / "run", [*HERE, "val_batch=2"])
    workload = classifier.workload
    rule = replace(workload.recipe.evaluation, rectangle_batch=2)
    workload.recipe = replace(workload.recipe, evaluation=rule)
    own = classifier.predict_validation()
    assert len({image.path for image in own.worst}) == 12
    assert [NAMES[image.label] for image in own.worst] == [
        Path(image.path).parent.name for image in own.worst
    ]


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run folder, which a test may change."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run", symlinks=True))


def test_images_are_judged_as_in_the_evaluation(trained: Path) -> None:
    """The validation images as loose files have the probabilities of the run's own loader, which
    a wrong crop, resize, order of classes, average or normalisation would change."""
    classifier = load_classifier(trained / "run", HERE)
    assert classifier.class_names == NAMES
    own = classifier.predict_validation()
    (scores,) = evaluate_path(trained / "run", HERE).values()
    assert own.images == 12
    assert 100 * own.wrong / own.images == pytest.approx(scores.metrics["top1_error"])
    assert len(own.worst) == 12
    loss = -np.log([image.probability for image in own.worst]).mean()
    assert loss == pytest.approx(scores.metrics["loss"], rel=2e-5)
    files = [trained / "own" / image.path for image in own.worst]
    for image, (path, prediction) in zip(own.worst, classifier.predict(files, 4), strict=True):
        assert path == trained / "own" / image.path
        assert NAMES[image.label] == path.parent.name
        assert prediction.labels[0] == image.predicted
        found = dict(zip(prediction.labels, prediction.probabilities, strict=True))
        assert found[image.label] == pytest.approx(image.probability, abs=2e-6)
        assert found[image.predicted] == pytest.approx(image.predicted_probability, abs=2e-6)
    lowest = [image.probability for image in own.worst]
    assert lowest == sorted(lowest)


def test_an_output_that_is_not_finite_is_no_prediction(trained: Path) -> None:
    """An evaluation counts it as wrong; softmax and max take NaN for the largest value."""
    classifier = load_classifier(trained / "run", [*HERE, f"data.root={trained / 'own'}"])
    photo = trained / "own/val/cat/1.png"
    with torch.no_grad():
        for weight in classifier.trained.workload.average.weights:  # type: ignore[attr-defined]
            weight.fill_(torch.nan)
        for stored in classifier.trained.workload.average.stored:  # type: ignore[attr-defined]
            stored.fill_(torch.nan)
    [(_, outcome)] = classifier.predict([photo], 2)
    assert isinstance(outcome, InputFailedError)
    assert str(outcome) == f"{photo} has no prediction (the network's output is not finite)"
    with pytest.raises(UsageError, match="is not finite for 12 of 12 validation images"):
        classifier.predict_validation()


def test_of_equal_outputs_the_guess_is_that_of_the_evaluation(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of several classes in bfloat16; softmax and max would take the first one."""
    classifier = load_classifier(trained / "run", [*HERE, f"data.root={trained / 'own'}"])
    monkeypatch.setattr(classifier.workload, "logits", lambda _, each: torch.zeros(len(each), 4))
    counts = ConfusionCounts(4, torch.device("cpu"))
    counts.add(torch.zeros(1, 4), torch.tensor([0]))
    guess = int(counts.flat.argmax())
    own = classifier.predict_validation()
    assert {image.predicted for image in own.worst} == {guess}
    [(_, loose)] = classifier.predict([trained / "own/val/cat/1.png"], 1)
    assert loose.labels == [guess]


def test_csv_and_json_have_the_same_predictions(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = trained / "own/val/cat"
    assert main([str(trained / "run"), str(photos), "--top", "2", "device=cpu"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == ["image", "class_1", "probability_1", "class_2", "probability_2"]
    assert [row[0] for row in rows] == [str(photos / name) for name in ("0.jpg", "1.png", "2.jpg")]
    out = tmp_path / "a.json"
    arguments = ["--top=2", "--to", "json", "--out", str(out), "device=cpu"]
    assert main([str(trained / "run/checkpoint.pt"), str(photos), *arguments]) == 0
    assert capsys.readouterr().out == f"3 images: {out}\n"
    for row, entry in zip(rows, json.loads(out.read_text()), strict=True):
        assert row[0] == entry["image"]
        told = [(each["class"], each["probability"]) for each in entry["predictions"]]
        assert told == [(row[1], float(row[2])), (row[3], float(row[4]))]
        assert told[0][1] >= told[1][1]
        assert [NAMES[each["label"]] for each in entry["predictions"]] == [row[1], row[3]]
    assert main([str(trained / "run"), str(photos), *arguments]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err


def test_a_name_that_is_no_utf_8_keeps_its_bytes(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Where the output is a file or a pipe, as with --out; it named a file that does not exist."""
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9.png")
    shutil.copy(os.fsencode(trained / "own/val/cat/1.png"), name)
    words = [str(trained / "run"), os.fsdecode(name), "--top=1", "device=cpu"]
    assert main(words) == 0
    printed = capfdbinary.readouterr().out
    assert name in printed
    assert main([*words, "--out", str(tmp_path / "a.csv")]) == 0
    assert (tmp_path / "a.csv").read_bytes() == printed


def test_an_unreadable_image_is_named_and_the_others_are_predicted(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    whole = (trained / "own/val/cat/1.png").read_bytes()
    (photos / "a.png").write_bytes(whole)
    (photos / "cut.png").write_bytes(whole[:200])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.png").write_bytes(whole)
    (photos / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/above").symlink_to(photos)
    (photos / "notes.txt").write_text("no image")
    (photos / ".hidden.png").write_bytes(whole)
    Image.new("F", (20, 20)).save(photos / "deep.tif")
    assert main([str(trained / "run"), str(photos), "--top=1", "device=cpu"]) == 1
    printed = capsys.readouterr()
    assert [line.partition(",")[0] for line in printed.out.splitlines()] == [
        "image", str(photos / "a.png"), str(photos / "more/b.png"),
    ]  # fmt: skip
    cut, deep = printed.err.splitlines()[-2:]
    assert cut.startswith(f"lsgd: {photos}/cut.png cannot be read (")
    assert "F;32F" in deep
    assert "decoded the same way by every loader" in deep


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no image is given; write images or folders of images, or --validation"),
        (["nowhere.jpg"], "nowhere.jpg does not exist; write an image, or a folder of images"),
        (["{run}"], "has no image (a file named *.jpeg, "),
        (["{own}", "--top=5"], "--top 5 must be at most 4, the number of classes"),
        (["{own}", "--validation"], "leave out images, --top, --to and --out"),
        (["{own}", "seed=1"], "would change the run"),
        (["{own}", "++seed=1"], "would change the run"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    arguments: list[str], sentence: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.format(run=trained / "run", own=trained / "own") for each in arguments]
    assert main([str(trained / "run"), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_images_of_a_loader_of_ones_own_are_not_prepared_by_another(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network was never shown images that are cropped and normalised as lsgd does."""
    recipe, saved = network.load_trained(trained / "run", HERE, remedy="")
    own = replace(recipe, inputs=replace(recipe.inputs, loader="pkg.mod:Loader"))
    monkeypatch.setattr(network, "load_trained", lambda *_, **__: (own, saved))
    with pytest.raises(UsageError, match=r"with inputs=pkg\.mod:Loader; give a run on"):
        load_classifier(trained / "run", HERE)


def test_a_run_that_does_not_exist_is_not_to_be_resumed(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trained / "gone"), str(trained / "own/val")]) == 2
    said = capsys.readouterr().err
    assert "gone cannot be read (No such file or directory); give another checkpoint of" in said


def test_names_of_an_older_run_come_from_the_index_or_are_numbers(
    trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / CLASSES).unlink()
    assert load_classifier(copied, HERE).class_names == NAMES
    elsewhere = load_classifier(copied, [*HERE, "data.root=nowhere"])
    assert elsewhere.class_names == ["0", "1", "2", "3"]
    for text in ('["a"]', "[1, 2, 3, 4]", "[", '{"a": 1}'):
        (copied / CLASSES).write_text(text)
        assert main([str(copied), str(trained / "own/val"), "device=cpu"]) == 2
        said = capsys.readouterr().err
        assert "classes.json has no class names (" in said
        assert "; remove it to use the numbers of the classes" in said


def test_other_data_do_not_rename_the_classes_of_a_run(
    trained: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(trained / "own", tmp_path / "own"))
    for split in ("train", "val"):
        (root / split / "cat").rename(root / split / "dog")
    index_folder(root)
    assert train.main(words(root, copied)) == 2
    assert "are not those that the run was trained on" in capsys.readouterr().err
    recipe = load_classifier(copied, HERE).recipe
    assert read_class_names(copied, recipe) == NAMES


def test_the_validation_images_of_a_run(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed as tables, and kept in the run folder for a report."""
    monkeypatch.chdir(copied.parent)
    assert main(["run", "--validation", *HERE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("12 images: top-1 error ")
    assert lines[2].split("|")[1:-1] == [
        f" {cell} " for cell in ("class", "as 10", "as 9", "as Zebra", "as cat", "error, %")
    ]
    predictions = read_predictions(copied)
    assert predictions is not None
    assert predictions.class_names == NAMES
    assert predictions.worst[0].path in "\n".join(lines)
    assert lines[-1] == "run/validation.json; `python -m lsgd.report run` shows it"
    Path("run/validation.json").write_text("annotations")
    assert main(["run", "--validation", *HERE]) == 2
    assert "is not overwritten; move it away" in capsys.readouterr().err
    assert Path("run/validation.json").read_text() == "annotations"


def test_images_in_memory_are_no_image_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["+recipe=digits", "epochs=1", "schedule.milestones=[]", "schedule.warmup=none"]
    assert train.main([*small, "device=cpu", f"run_dir={tmp_path / 'run'}"]) == 0
    assert not (tmp_path / "run" / CLASSES).exists()
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    capsys.readouterr()
    assert main([str(tmp_path / "run"), str(tmp_path / "a.png")]) == 2
    assert "is of digits, stored as arrays; give a run on a folder" in capsys.readouterr().err
