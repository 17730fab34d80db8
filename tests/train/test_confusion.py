"""The confusion matrix of an evaluation: exact on any number of processes and in any batches."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.threaded import run_on_threads
from helpers.usage_errors import usage_error
from test_evaluation import CLASSES, EXAMPLES, Images, Model, candidate
from torch import Tensor

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.confusion import ConfusionMatrix, counting
from lsgd.evaluate import main
from lsgd.evaluation import evaluate
from lsgd.inputs.wrapped import SizedInputs
from lsgd.learner import Learner
from lsgd.rules.sampler import MicroBatch
from lsgd.run import checkpoint
from lsgd.workloads import open_workload

DIGITS = ["+recipe=digits", "precision=float64"]
OLD = Path(__file__).parents[1] / "fixtures/0.1"
PLAIN = [f"data.root={OLD / 'images'}", "inputs=torchvision", "inputs.decoders=0", "device=cpu"]


class NamedImages(Images):
    """The validation set of test_evaluation.py, with the name that a loader has."""

    name = "random images"


def confusion(comm: Comm, batch: int, model: Model | None = None) -> tuple[ConfusionMatrix, int]:
    """The matrix of the evaluation, and its number of images with the right first guess."""
    trained = candidate(model or Model(), comm, EXAMPLES, batch)
    with counting(trained, NamedImages(), CLASSES) as (inputs, counts):
        scores = evaluate(trained, inputs)["val"]
    return counts.matrix(comm, []), scores.counts["top1"]


def expected() -> np.ndarray:
    """By hand, all images at once."""
    inputs = Images()
    with torch.inference_mode():
        guesses = Model().eval()(inputs.images.double()).argmax(1)
    counts = np.zeros((CLASSES, CLASSES + 1), np.int64)
    np.add.at(counts, (inputs.labels.numpy(), guesses.numpy()), 1)
    return counts


@pytest.mark.parametrize(("processes", "batch"), [(1, 100), (1, 7), (3, 5), (8, 60)])
def test_every_image_is_counted_once(processes: int, batch: int) -> None:
    """Catches a process or a batch that is left out, or counted on each process."""
    for matrix, right in run_on_threads(processes, lambda comm: confusion(comm, batch)):
        np.testing.assert_array_equal(matrix.counts, expected())
        assert np.trace(matrix.counts) == right


def test_a_mirrored_evaluation_is_counted_by_the_mean_of_both_outputs() -> None:
    """Catches counts of the image alone, or of its mirror image as one more image."""
    trained = candidate(Model(), SingleComm(), EXAMPLES, 10)
    recipe = compose_recipe(*DIGITS, "evaluation.mirror=true", f"data.val_examples={EXAMPLES}")
    trained = replace(trained, workload=open_workload(recipe, trained.device))
    with counting(trained, NamedImages(), CLASSES, mirrors=True) as (inputs, counts):
        scores = evaluate(trained, inputs)["val"]
    matrix = counts.matrix(SingleComm(), []).counts
    assert matrix.sum() == EXAMPLES
    assert np.trace(matrix) == scores.counts["top1"]
    images = Images().images.double()
    with torch.inference_mode():
        model = Model().eval()
        guesses = (model(images) + model(images.flip(-1))).argmax(1)
    np.testing.assert_array_equal(matrix[:, :CLASSES].sum(0), np.bincount(guesses, minlength=7))
    assert (matrix != expected()).any()


def test_images_have_the_size_of_the_epoch() -> None:
    """Catches a confusion matrix of other images than those of the scores beside it."""
    sides = []

    class Seen(NamedImages):
        def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
            passes = [*passes]
            sides.extend(each.side for each in passes)
            return super().evaluation(passes)

    recipe = compose_recipe("+recipe=digits", "evaluation.image_sizes=[[0,4],[2,8]]")
    trained = replace(candidate(Model(), SingleComm(), EXAMPLES, 50), epoch=1)
    with counting(trained, SizedInputs(Seen(), recipe), CLASSES) as (inputs, _):
        evaluate(trained, inputs)
    assert {*sides} == {4}


def test_further_sets_are_not_counted() -> None:
    trained = candidate(Model(), SingleComm(), EXAMPLES, 10)
    further = MicroBatch(None, np.arange(10), range(0), 0, "v2")
    with counting(trained, NamedImages(), CLASSES) as (inputs, counts), torch.inference_mode():
        evaluate(trained, inputs)
        trained.model.eval()
        for images, _ in inputs.evaluation([further]):
            trained.model(images.double())
    np.testing.assert_array_equal(counts.matrix(SingleComm(), []).counts, expected())


def test_an_output_that_is_not_finite_is_no_guess() -> None:
    """It is wrong in the top-1 error too; topk takes NaN for the largest value."""
    model = Model()
    model.fc.bias.data[3] = torch.nan
    matrix, right = confusion(SingleComm(), 9, model)
    assert right == 0
    assert matrix.counts[:, CLASSES].sum() == EXAMPLES


def test_the_table_has_the_classes_of_the_highest_errors_first() -> None:
    counts = np.array([[3, 1, 0, 0], [1, 1, 4, 2], [0, 0, 0, 0]])
    lines = ConfusionMatrix(counts, ["cat", "dog", "fox"]).table().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells == [
        ["dog", "8", "87.50 %", "fox (4)"], ["cat", "4", "25.00 %", "dog (1)"], ["fox", "0", "", ""]
    ]  # fmt: skip
    many = ConfusionMatrix(np.eye(25, 26, dtype=np.int64), [str(each) for each in range(25)])
    assert many.table().endswith("\n5 classes of lower error are left out")


def test_class_names_keep_their_bytes(tmp_path: Path) -> None:
    """Such as a folder in Latin-1, whose name is not UTF-8."""
    name = os.fsdecode(b"caf\xe9")
    ConfusionMatrix(np.eye(2, 3, dtype=np.int64), [name, "a,b"]).write(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes().startswith(b'class,caf\xe9,"a,b",not finite\n')


def test_the_command_prints_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "confusion.csv"
    words = [str(OLD / "images-killed"), *PLAIN, "--per-class", "--confusion", str(file)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("8 images: top-1 error")
    assert "most often taken for" in printed
    head, *rows = [line.split(",") for line in file.read_text().splitlines()]
    assert head[0] == "class"
    assert head[-1] == "not finite"
    assert [row[0] for row in rows] == head[1:-1]
    assert sum(int(cell) for row in rows for cell in row[1:]) == 8


def test_plain_weights_have_no_names_of_a_run_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = compose_recipe(*DIGITS)
    network = open_workload(recipe, torch.device("cpu")).network()
    torch.save(network.state_dict(), tmp_path / "plain.pth")
    (tmp_path / "classes.json").write_text('["cat", "dog"]')
    assert main([str(tmp_path / "plain.pth"), *DIGITS, "device=cpu", "--per-class"]) == 0
    assert "most often taken for" in capsys.readouterr().out
    checkpoint.write(Learner(recipe, SingleComm(), torch.device("cpu")).checkpoint(), tmp_path)
    refusal = usage_error(main, capsys, str(tmp_path), "device=cpu", "--per-class")
    assert "classes.json has no class names (it has 2 names for 10 classes)" in refusal


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(OLD / "images-killed"), *PLAIN, "--confusion", str(tmp_path / "no/file.csv")]
    refusal = usage_error(main, capsys, *words)
    assert f"no/file.csv cannot be written, as {tmp_path}/no is not a folder" in refusal
    for existing in (tmp_path, kept := tmp_path / "kept.pt", tmp_path / "link"):
        kept.write_bytes(b"weights")
        if existing.name == "link":
            existing.symlink_to("kept.pt")
        words[-1] = str(existing)
        refusal = usage_error(main, capsys, *words)
        assert f"--confusion {existing} exists already and is not overwritten; write" in refusal
    assert kept.read_bytes() == b"weights"
    recipe = compose_recipe("+recipe=ptb_small", "inputs=synthetic", "model.width=8")
    checkpoint.write(Learner(recipe, SingleComm(), torch.device("cpu")).checkpoint(), tmp_path)
    refusal = usage_error(main, capsys, str(tmp_path), "--per-class")
    assert "a confusion matrix supports only data.workload=images" in refusal
