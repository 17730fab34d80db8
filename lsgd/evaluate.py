"""A checkpoint's error: `python -m lsgd.evaluate CHECKPOINT`, alone or under a launcher."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import checkpoint, config
from lsgd.comm import agree, open_comm, pick_device, run_command
from lsgd.errors import Refused
from lsgd.evaluation import evaluate
from lsgd.inputs import open_inputs
from lsgd.launcher import detect
from lsgd.learner import DTYPES
from lsgd.models import make_model
from lsgd.tally import Scores


def evaluate_checkpoint(path: Path, words: Sequence[str] = ()) -> Scores:
    """The scores of a checkpoint over the whole validation set of its recipe.

    `words` change execution fields of the recipe, such as data.root=… or val_batch=…. Raises
    Refused if the checkpoint is damaged, the data is not there, or a word changes the trajectory.
    """
    saved = checkpoint.load(checkpoint.read(path), str(path))
    # Where it was trained says nothing about this machine.
    here = {"device": "auto", "comm": saved.recipe["comm"] | {"library": "auto"}}
    recipe = config.from_mapping(saved.recipe | here, *words)
    if recipe.fingerprint != saved.fingerprint:
        raise Refused(
            f"{' '.join(words)} would make another run of {path}; a checkpoint is evaluated as it "
            "was trained, and only where and how fast may differ: data.root, device, val_batch, "
            "comm.library"
        )
    device = pick_device(recipe.device)
    comm = open_comm(recipe.comm.library, device=device, timeout=recipe.comm.timeout)
    try:
        inputs = agree(comm, lambda: open_inputs(recipe, device))
        data, dtype = recipe.data, DTYPES[recipe.precision]
        model = make_model(
            recipe.model.name,
            classes=data.classes,
            channels=data.channels,
            last_gamma=recipe.model.last_gamma,
            seed=recipe.seed,
        ).to(device, dtype)
        model.load_state_dict(saved.model)
        return evaluate(
            model,
            inputs,
            comm,
            examples=data.val_examples,
            batch=recipe.val_batch,
            device=device,
            dtype=dtype,
        )
    finally:
        comm.close()


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lsgd.evaluate",
        usage="python -m lsgd.evaluate CHECKPOINT [key=value ...]",
        description="The error of a checkpoint: every validation image counts exactly once.",
    )
    parser.add_argument("checkpoint", type=Path, help="the checkpoint.pt of a run folder")
    parser.add_argument(
        "words", nargs="*", metavar="key=value", help="such as data.root=/data/imagenet"
    )
    arguments = parser.parse_args(argv)

    def command() -> None:
        found = evaluate_checkpoint(arguments.checkpoint, arguments.words)
        if detect().rank == 0:
            print(
                f"{found.examples} images: top-1 error {found.top1_error:.2f} %, top-5 error "
                f"{found.top5_error:.2f} %, loss {found.loss:.4f}"
            )

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
