"""Evaluation of a checkpoint: `python -m lsgd.evaluate CHECKPOINT`, alone or under a launcher.

Plain weights need a recipe: `python -m lsgd.evaluate resnet50-0676ba61.pth +recipe=bs256`.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from lsgd import config, paths
from lsgd.comm import joined
from lsgd.errors import UsageError
from lsgd.evaluation import EvaluationProgress, evaluate, ignore_progress
from lsgd.inputs.consistency import Digests, check_same_data, open_consistent_inputs
from lsgd.job.command import Parser, run_command
from lsgd.job.device import choose_kernels, pick_device
from lsgd.job.launcher import detect_launch
from lsgd.metric_sums import Scores
from lsgd.override_syntax import canonical
from lsgd.recipe import Recipe
from lsgd.rules.metric import METRICS
from lsgd.run import checkpoint
from lsgd.run.console import QUIET
from lsgd.start_weights import bare_state_dict
from lsgd.trained_model import build_trained, load_trained


def evaluate_path(path: Path, overrides: Sequence[str] = ()) -> dict[str, Scores]:
    """Evaluate a checkpoint or, with `+recipe=NAME`, plain weights; return scores by set."""
    return _evaluate(*_load(path, overrides))


def evaluate_checkpoint(path: Path, overrides: Sequence[str] = ()) -> dict[str, Scores]:
    """Evaluate a checkpoint, or the newest one of a run folder, on each whole evaluation set.

    `overrides` change execution fields of its recipe, such as data.root=… or val_batch=…. Raises
    UsageError if the checkpoint is damaged, the data is missing, or an override changes the
    trajectory.
    """
    return _evaluate(*_load_checkpoint(path, overrides))


def evaluate_weights(path: Path, overrides: Sequence[str]) -> dict[str, Scores]:
    """Evaluate a file of plain weights, such as torchvision's, with a recipe's data and model.

    Raises UsageError if the file holds no weights, or those of another model.
    """
    return _evaluate(*_load_weights(path, overrides))


class _SavedModel(NamedTuple):
    """The weights and carried states to evaluate, with their recipe and data digests."""

    recipe: Recipe
    name: str
    """The path of the file, for messages."""
    weights: dict[str, Tensor]
    parts: dict[str, dict[str, Tensor]]
    data: Digests


def _load(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load a checkpoint or, with `+recipe=NAME`, plain weights."""
    plain = any(canonical(word).startswith("+recipe=") for word in overrides)
    return (_load_weights if plain else _load_checkpoint)(path, overrides)


def _load_checkpoint(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load the model of a checkpoint, or of the newest one of a run folder."""
    remedy = (
        "give another, or, for a file of plain weights, add a recipe for the data and the model, "
        "such as +recipe=bs256"
    )
    recipe, saved = load_trained(path, overrides, remedy=remedy)
    return _SavedModel(recipe, str(path), saved.model, saved.parts, saved.data)


def _load_weights(path: Path, overrides: Sequence[str]) -> _SavedModel:
    """Load a file of plain weights, to be evaluated with the recipe of these overrides."""
    recipe = config.load_recipe(overrides)
    try:
        weights = checkpoint.load_numbers(checkpoint.read(path))
    except ValueError as error:
        raise UsageError(
            f"{path} holds no weights ({error}); give a file that torch.save made of a state_dict"
        ) from None
    if isinstance(weights, dict) and "fingerprint" in weights:
        raise UsageError(
            f"{path} is a checkpoint of lsgd, which contains its recipe; leave out +recipe="
        )
    try:
        tensors, _ = bare_state_dict(weights)
    except ValueError:
        raise UsageError(
            f"{path} holds no weights by name; give a file that torch.save made of a state_dict"
        ) from None
    return _SavedModel(recipe, str(path), tensors, parts={}, data={})


def _evaluate(
    recipe: Recipe,
    name: str,
    weights: dict[str, Tensor],
    parts: dict[str, dict[str, Tensor]],
    data: Digests,
) -> dict[str, Scores]:
    device = pick_device(recipe.device)
    choose_kernels(device, precision=recipe.precision, deterministic=recipe.deterministic)
    with joined(recipe.comm, device) as comm:
        trained = build_trained(recipe, name, weights, parts, comm, device)
        inputs, here = open_consistent_inputs(comm, trained.workload.inputs)
        check_same_data(data, here)
        return evaluate(
            trained, inputs, on_progress=_progress_lines() if comm.rank == 0 else ignore_progress
        )


def _progress_lines() -> EvaluationProgress:
    """Return a callback that prints progress lines of an evaluation to stderr every few seconds."""
    printed = time.monotonic()

    def show(split: str, done: int, passes: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= QUIET:
            printed = time.monotonic()
            print(f"evaluating {split}: batch {done}/{passes}", file=sys.stderr, flush=True)

    return show


def _format_scores(split: str, scores: Scores, classes: int) -> str:
    """Format the number of examples, the metrics and the loss of one evaluation set.

    The set val is not named, and metrics that are always 0 with so few classes are left out.
    """
    kind, count = next(iter(scores.counts.items()))
    rates = [
        METRICS[name].format_labelled(rate)
        for name, rate in scores.metrics.items()
        if name != "loss" and not METRICS[name].is_always_0(classes)
    ]
    text = ", ".join([*rates, f"loss {scores.metrics['loss']:.4f}"])
    return f"{'' if split == 'val' else f'{split}: '}{count} {kind}: {text}"


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
        help="a run folder, or its checkpoint.pt; or, with +recipe=NAME, plain weights such as "
        "torchvision's resnet50-0676ba61.pth",
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="key=value", help="such as data.root=/data/imagenet"
    )

    def command() -> None:
        arguments = parser.parse_args(argv)
        saved = _load(arguments.checkpoint, arguments.words)
        by_set = _evaluate(*saved)
        if detect_launch().rank == 0:
            classes = saved.recipe.data.classes
            for split, of_set in by_set.items():
                print(_format_scores(split, of_set, classes))

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
