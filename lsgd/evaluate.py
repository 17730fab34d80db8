"""Evaluation of a checkpoint: `python -m lsgd.evaluate CHECKPOINT`, alone or under a launcher.

Plain weights need a recipe: `python -m lsgd.evaluate resnet50-0676ba61.pth recipe=bs256`.
"""

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lsgd import config, messages, paths
from lsgd.comm import all_or_raise, joined
from lsgd.confusion import ConfusionMatrix, counting
from lsgd.errors import UsageError
from lsgd.evaluation import EvaluationProgress, evaluate, ignore_progress
from lsgd.files import check_new_file
from lsgd.inputs import Inputs
from lsgd.inputs.consistency import Digests, check_same_data, open_consistent_inputs
from lsgd.inputs.staging import stage_data
from lsgd.inputs.wrapped import OtherTrainingInputs, inputs_after
from lsgd.job.command import Parser, integer_from, run_command
from lsgd.job.device import choose_kernels, pick_device
from lsgd.job.launcher import detect_launch
from lsgd.override_syntax import canonical
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.recipe.start_file import file_of_weights
from lsgd.rules.averaging import mean_of_states
from lsgd.rules.metric import named_metric
from lsgd.run import checkpoint
from lsgd.run.console import QUIET
from lsgd.scores import Scores
from lsgd.start_weights import read_state_dict
from lsgd.trained_model import (
    build_trained,
    load_class_names,
    load_trained,
    open_data_of_run,
    trained_crop,
)
from lsgd.workloads import open_workload


class _EvaluationResult(NamedTuple):
    """The result of an evaluation."""

    scores: dict[str, Scores]
    """The scores by evaluation set."""
    confusion: ConfusionMatrix | None
    """The confusion matrix of the first set, if it was asked for."""


def evaluate_path(path: Path, overrides: Sequence[str] = ()) -> dict[str, Scores]:
    """Evaluate a checkpoint, or the newest one of a run folder, on each whole evaluation set.

    `overrides` change execution fields of its recipe, such as data.root=… or val_batch=…, and the
    size and crop of the evaluated images, data.image_size and data.crop_ratio. With `recipe=NAME`
    the file has plain weights, such as torchvision's, for that recipe's data and model. Raises
    UsageError if the file is damaged or has other weights, the data is missing, or an override
    changes the trajectory of a checkpoint.
    """
    return _evaluate(_load(path, overrides)).scores


class _SavedModel(NamedTuple):
    """The weights and carried states to evaluate, with their recipe and data digests."""

    recipe: Recipe
    name: str
    """The path of the file, for messages."""
    weights: dict[str, Tensor]
    parts: dict[str, dict[str, Tensor]]
    data: Digests
    trained_crop: tuple[int, float]
    """The image size, in pixels (0 without images), and crop ratio of the run that saved them."""
    epoch: int | None = None
    """The epoch, from 0, of the last training step; None for weights without a run."""


def _load(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load a checkpoint or, with `recipe=NAME`, plain weights."""
    plain = any(canonical(word).startswith("recipe=") for word in overrides)
    return (_load_weights if plain else _load_checkpoint)(path, overrides)


def _load_checkpoint(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load the model of a checkpoint, or of the newest one of a run folder."""
    remedy = (
        "give another, or, for a file of plain weights, add a recipe for the data and the model, "
        "such as recipe=bs256"
    )
    recipe, saved = load_trained(path, overrides, remedy=remedy, any_image_size=True)
    crop = trained_crop(saved)
    epoch = recipe.epoch_before(saved.step)
    return _SavedModel(recipe, str(path), saved.model, saved.parts, saved.data, crop, epoch)


def _load_average(folder: Path, count: int, overrides: Sequence[str]) -> _SavedModel:
    """Load the mean of the weights of a run folder's newest checkpoints, to be evaluated.

    BN statistics are measured on training images with these weights, as for averages in training.
    """
    if not folder.is_dir():
        raise UsageError(f"--average {count} is for a run folder; give the folder of {folder}")
    # The oldest first: a milestone replaces a checkpoint of its step.
    steps = {step: path for path, step in reversed(paths.checkpoint_steps(folder).items())}
    if len(steps) < count:
        raise UsageError(
            f"--average {count} needs the checkpoints of {count} steps, and {folder} has those of "
            f"{len(steps)}; write less, or train with keep_checkpoints={count}"
        )
    newest = _load_checkpoint(folder, overrides)
    recipe = newest.recipe
    what = "an average over checkpoints"
    check_supported(
        recipe, what, "leave out --average", workloads=["images"], strategies=["allreduce", "sync"]
    )
    if recipe.averaging.name != "none":
        raise UsageError(
            f"--average {count} is for runs without averaged weights, and {folder} has "
            f"averaging={recipe.averaging.name}; leave it out to evaluate its own average"
        )
    files = [*reversed(steps.values())][:count]
    weights = mean_of_states(_load_checkpoint(file, overrides).weights for file in files)
    measured = replace(recipe, bn_statistics=replace(recipe.bn_statistics, name="precise"))
    return newest._replace(recipe=measured, weights=weights, parts={})


def _load_weights(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load a file of plain weights, to be evaluated with the recipe of these overrides."""
    recipe = config.load_recipe(overrides)
    try:
        content = checkpoint.read(file_of_weights(path, str(path)), "give another file")
        tensors, _, saved = read_state_dict(content, str(path), lambda: _own_names(recipe))
        is_checkpoint = saved is not None
    except checkpoint.DamagedCheckpointError:
        is_checkpoint = True
    except ValueError as error:
        raise UsageError(
            f"{path} holds no weights ({error}); give a file of a state dict, as safetensors or by "
            "torch.save(model.state_dict(), 'weights.pth')"
        ) from None
    if is_checkpoint:
        raise UsageError(
            f"{path} is a checkpoint of lsgd, which contains its recipe; leave out recipe="
        )
    crop = recipe.data.image_size, recipe.data.crop_ratio
    return _SavedModel(recipe, str(path), tensors, parts={}, data={}, trained_crop=crop)


def _own_names(recipe: Recipe) -> Collection[str]:
    return open_workload(recipe, torch.device("cpu")).network().state_dict().keys()


def _evaluate(saved: _SavedModel, *, confusion: bool = False) -> _EvaluationResult:
    recipe = saved.recipe
    device = pick_device(recipe.device)
    choose_kernels(device, precision=recipe.precision, deterministic=recipe.deterministic)
    with joined(recipe.comm, device) as comm:
        stage_data(recipe, comm)
        trained = build_trained(
            recipe, saved.name, saved.weights, saved.parts, comm, device, saved.epoch
        )
        opening = partial(open_data_of_run, trained.workload.inputs)
        inputs, here = open_consistent_inputs(comm, opening)
        check_same_data(saved.data, here)
        inputs = _measured_as_trained(saved, inputs, device)
        # Plain weights have no run folder, and beside them may be another run's.
        run = Path(saved.name) if saved.epoch is not None else None
        asks = confusion and comm.rank == 0
        names = all_or_raise(comm, lambda: load_class_names(run, recipe) if asks else [])
        watch = _progress_lines() if comm.rank == 0 else ignore_progress
        if not confusion:
            return _EvaluationResult(evaluate(trained, inputs, on_progress=watch), None)
        mirrors = recipe.evaluation.mirror
        with counting(trained, inputs, recipe.data.classes, mirrors=mirrors) as (labelled, counts):
            scores = evaluate(trained, labelled, on_progress=watch)
        return _EvaluationResult(scores, counts.matrix(comm, names))


def _measured_as_trained(saved: _SavedModel, inputs: Inputs, device: torch.device) -> Inputs:
    """Return a loader whose training images have the size and crops that the run trained on.

    BN statistics are measured on these, whatever images are evaluated.
    """
    data, (size, ratio) = saved.recipe.data, saved.trained_crop
    if not size or (size, ratio) == (data.image_size, data.crop_ratio):
        return inputs
    trained = replace(saved.recipe, data=replace(data, image_size=size, crop_ratio=ratio))

    def open_training() -> Inputs:
        return inputs_after(open_workload(trained, device).inputs(), saved.epoch)

    return OtherTrainingInputs(inputs_after(inputs, saved.epoch), open_training)


def _crop_differences(saved: _SavedModel) -> Iterator[str]:
    """Yield a line for each setting of the evaluated crops that differs from the run's own."""
    data, (size, ratio) = saved.recipe.data, saved.trained_crop
    if saved.epoch is not None:
        then = saved.recipe.evaluated_images(saved.epoch)
        if then[:2] != (data.image_size, data.crop_ratio):
            yield (
                f"images of {then.side} x {then.side} pixels and centre crops of "
                f"{then.crop_ratio:g}, as the run evaluates epoch {saved.epoch + 1}"
            )
    if data.image_size != size:
        own = f"the run's own are {size} x {size}"
        yield f"images of {data.image_size} x {data.image_size} pixels; {own}"
    if data.crop_ratio != ratio:
        yield f"centre crops of {data.crop_ratio:g} of the short side; the run's own are {ratio:g}"


def _progress_lines() -> EvaluationProgress:
    """Return a callback that prints progress lines of an evaluation to stderr every few seconds."""
    printed = time.monotonic()

    def show(split: str, done: int, passes: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= QUIET:
            printed = time.monotonic()
            messages.show(f"evaluating {split}: batch {done}/{passes}", on_stderr=True)

    return show


def _format_scores(split: str, scores: Scores, classes: int | None) -> str:
    """Format the number of examples, the metrics and the loss of one evaluation set.

    The set val is not named, and metrics that are always 0 with so few classes are left out.
    """
    kind, count = next(iter(scores.counts.items()))
    rates = [
        named_metric(name).format_labelled(rate)
        for name, rate in scores.metrics.items()
        if name != "loss" and not named_metric(name).is_always_0(classes)
    ]
    text = ", ".join([*rates, f"loss {scores.metrics['loss']:.4f}"])
    return f"{'' if split == 'val' else f'{split}: '}{count} {kind}: {text}"


def _print_evaluation(arguments: argparse.Namespace) -> None:
    """Evaluate the checkpoint of a command line; print its scores, and what else it asks for."""
    if arguments.average > 1:
        saved = _load_average(arguments.checkpoint, arguments.average, arguments.words)
    else:
        saved = _load(arguments.checkpoint, arguments.words)
    asked = arguments.per_class or arguments.confusion is not None
    if asked:
        check_supported(
            saved.recipe,
            "a confusion matrix",
            "leave out --per-class and --confusion",
            workloads=["images"],
        )
    if arguments.confusion:
        check_new_file(arguments.confusion, "--confusion")
    by_set, confusion = _evaluate(saved, confusion=asked)
    if detect_launch().rank == 0:
        classes = saved.recipe.data.rated_classes
        for split, of_set in by_set.items():
            print(_format_scores(split, of_set, classes))
        for line in _crop_differences(saved):
            print(line)
        if confusion and arguments.per_class:
            print(confusion.table())
        if confusion and arguments.confusion:
            confusion.write(arguments.confusion)


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd evaluate` command line and return its exit code."""
    parser = Parser(
        "lsgd.evaluate",
        "Compute the validation error of a checkpoint; each example counts exactly once.",
        keys=config.override_keys,
        usage="python -m lsgd.evaluate CHECKPOINT [recipe=NAME] [key=value ...]",
    )
    parser.add_argument(
        "checkpoint",
        type=paths.parse_path,
        help="a run folder, or its checkpoint.pt; or, with recipe=NAME, plain weights such as "
        "torchvision's resnet50-0676ba61.pth",
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="key=value",
        help="such as data.root=/data/imagenet, data.image_size=288 for larger images, "
        "data.crop_ratio=0.95, or evaluation.sets=[val,v2] for other sets too",
    )
    parser.add_argument(
        "--average",
        type=integer_from(1),
        default=1,
        metavar="N",
        help="evaluate the mean of the weights of the newest N checkpoints of a run folder, with "
        "BN statistics measured on training images",
    )
    parser.add_argument(
        "--per-class",
        action="store_true",
        help="print the classes of images with the highest errors, and what they are taken for",
    )
    parser.add_path(
        "--confusion",
        "FILE.csv",
        "write the confusion matrix of all classes: a row for each, a column for each guess",
    )
    return run_command(lambda: _print_evaluation(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
