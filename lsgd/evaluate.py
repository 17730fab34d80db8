"""A checkpoint's error: `python -m lsgd.evaluate CHECKPOINT`, alone or under a launcher.

The error of plain weights: `python -m lsgd.evaluate resnet50-0676ba61.pth +recipe=bs256`.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from lsgd import config
from lsgd.comm import agree, joined
from lsgd.errors import Refused
from lsgd.evaluation import EvaluationProgress, evaluate, unwatched
from lsgd.job.command import Parser, run_command
from lsgd.job.device import choose_kernels, pick_device
from lsgd.job.launcher import detect
from lsgd.recipe import Recipe
from lsgd.rules.metric import METRICS
from lsgd.run import checkpoint
from lsgd.run.console import QUIET
from lsgd.tally import Scores
from lsgd.trained import make_trained, read_trained


def scores(path: Path, words: Sequence[str] = ()) -> dict[str, Scores]:
    """The scores of a checkpoint, or with `+recipe=NAME` among the words of plain weights."""
    plain = any(word.startswith("+recipe=") for word in words)
    return (evaluate_weights if plain else evaluate_checkpoint)(path, words)


def evaluate_checkpoint(path: Path, words: Sequence[str] = ()) -> dict[str, Scores]:
    """The scores of a checkpoint, or of the newest in a run folder, over each whole evaluation set
    of its recipe.

    `words` change execution fields of the recipe, such as data.root=… or val_batch=…. Raises
    Refused if the checkpoint is damaged, the data is not there, or a word changes the trajectory.
    """
    remedy = (
        "give another, or, if it is a file of plain weights, add a recipe that says on which data "
        "and in which model, such as +recipe=bs256"
    )
    recipe, saved = read_trained(path, words, remedy=remedy)
    return _evaluate(recipe, str(path), saved.model, saved.parts)


def evaluate_weights(path: Path, words: Sequence[str]) -> dict[str, Scores]:
    """The scores of plain weights, such as torchvision publishes, on the data of a recipe.

    Raises Refused if the file holds no weights, or not those of the recipe's model.
    """
    recipe = config.load_recipe(words)
    try:
        weights = checkpoint.load_numbers(checkpoint.read(path))
    except ValueError as error:
        raise Refused(
            f"{path} holds no weights ({error}); give a file that torch.save made of a state_dict"
        ) from None
    if isinstance(weights, dict) and "fingerprint" in weights:
        raise Refused(f"{path} is a checkpoint of lsgd, which knows its recipe; leave out +recipe=")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise Refused(
            f"{path} holds no weights by their names; give a file that torch.save made of a "
            "state_dict"
        )
    return _evaluate(recipe, str(path), weights, parts={})


def _evaluate(
    recipe: Recipe, name: str, weights: dict[str, Tensor], parts: dict[str, dict[str, Tensor]]
) -> dict[str, Scores]:
    device = pick_device(recipe.device)
    choose_kernels(device, tf32=recipe.precision == "tf32", repeats=recipe.deterministic)
    with joined(recipe.comm, device) as comm:
        trained = make_trained(recipe, name, weights, parts, comm, device)
        inputs = agree(comm, trained.workload.inputs)
        return evaluate(trained, inputs, watch=_progress_lines() if comm.rank == 0 else unwatched)


def _progress_lines() -> EvaluationProgress:
    """Return a function that prints how far an evaluation is, every QUIET seconds, on stderr."""
    printed = time.monotonic()

    def show(split: str, done: int, passes: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= QUIET:
            printed = time.monotonic()
            print(f"evaluating {split}: pass {done}/{passes}", file=sys.stderr, flush=True)

    return show


def _in_words(split: str, scores: Scores) -> str:
    """The number of examples of a set, its rates and its loss; val is not named."""
    kind, count = next(iter(scores.counts.items()))
    rates = [METRICS[name].named(rate) for name, rate in scores.rates.items() if name != "loss"]
    text = ", ".join([*rates, f"loss {scores.rates['loss']:.4f}"])
    return f"{'' if split == 'val' else f'{split}: '}{count} {kind}: {text}"


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        "lsgd.evaluate",
        "The error of a checkpoint: every validation example counts exactly once.",
        keys=config.field_keys,
        usage="python -m lsgd.evaluate CHECKPOINT [+recipe=NAME] [key=value ...]",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="a run folder, or its checkpoint.pt; or, with +recipe=NAME, plain weights such as "
        "torchvision's resnet50-0676ba61.pth",
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="key=value", help="such as data.root=/data/imagenet"
    )

    def command() -> None:
        arguments = parser.parse_args(argv)
        by_set = scores(arguments.checkpoint, arguments.words)
        if detect().rank == 0:
            print("\n".join(_in_words(split, of_set) for split, of_set in by_set.items()))

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
