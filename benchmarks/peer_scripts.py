"""The training commands that benchmarks.peers compares: two scripts of other projects, and lsgd.

Each runs the same training as far as their options allow: network, images, crops and flips, batch,
lr, momentum and weight decay, one thread, the same number of loaders, and a line for each step.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_measurement import TrainingCommand
from lsgd.errors import UsageError
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.run.provenance import commit_of

TrainingFactory = Callable[[Path], TrainingCommand]
"""A function that returns the training command that writes into a given folder."""

RUN_SCRIPT = [sys.executable, "-m", "benchmarks.run_script"]


@dataclass(frozen=True)
class PeerScript:
    """Another project's training script, in a checkout of that project."""

    repository: str
    script: str
    version: str
    """The file that has the version of the checkout."""
    step: str
    """The pattern of a line for a completed step, as in TrainingCommand."""
    arguments: Callable[[Recipe, Path], Sequence[str]]
    """A function that returns the script's arguments for a recipe and an output folder."""
    fastest: Sequence[str]
    """The script's further arguments for its fastest training on a CPU without a compiler."""

    def check(self, checkout: Path) -> None:
        """Raise UsageError if the folder is no checkout of the project."""
        for file in (self.script, self.version):
            if not (checkout / file).is_file():
                raise UsageError(
                    f"{checkout} has no {file}; give a checkout of github.com/{self.repository}"
                )

    def description(self, checkout: Path) -> str:
        """Return the script's version and commit, or without git its version and content hash."""
        found = re.search(r"\d[\w.+]*", (checkout / self.version).read_text())
        if commit := commit_of(checkout):
            where = f"commit {commit}"
        else:
            digest = hashlib.sha256((checkout / self.script).read_bytes()).hexdigest()
            where = f"not a git checkout, sha256 of the script {digest[:12]}"
        return f"{self.repository} {found[0] if found else 'unknown'}, {self.script}, {where}"

    def training_factory(
        self, checkout: Path, recipe: Recipe, *, fastest: bool = False
    ) -> TrainingFactory:
        """Return the unchanged script's training of a recipe, for any output folder."""
        further = self.fastest if fastest else ()

        def of_folder(folder: Path) -> TrainingCommand:
            script = str(checkout / self.script)
            return TrainingCommand(
                [*RUN_SCRIPT, script, *self.arguments(recipe, folder), *further], self.step
            )

        return of_folder


def lsgd_training(overrides: Sequence[str], environment: Mapping[str, str] = {}) -> TrainingFactory:
    """Return lsgd's training with these overrides, as a function of the output folder."""

    def of_folder(folder: Path) -> TrainingCommand:
        command = [
            sys.executable,
            "-m",
            "lsgd.train",
            *overrides,
            format_override("run_dir", folder / "run"),
        ]
        return TrainingCommand(command, r"step \d+/", environment)

    return of_folder


def _torchvision(recipe: Recipe, folder: Path) -> Sequence[str]:
    side = recipe.data.image_size
    return [
        *("--data-path", str(recipe.data.root), "--model", recipe.model.name, "--device", "cpu"),
        *("--batch-size", str(recipe.worker_batch), "--workers", str(recipe.inputs.decoders)),
        *("--opt", "sgd_nesterov" if recipe.optim.nesterov else "sgd"),
        *("--lr", str(recipe.lr(0)), "--momentum", str(recipe.optim.momentum)),
        *("--weight-decay", str(recipe.optim.weight_decay)),
        *("--train-crop-size", str(side), "--print-freq", "1", "--output-dir", str(folder)),
    ]


def _timm(recipe: Recipe, folder: Path) -> Sequence[str]:
    side = str(recipe.data.image_size)
    return [
        *(str(recipe.data.root), "--train-split", "train", "--val-split", "val"),
        *("--num-classes", str(recipe.data.classes)),
        *("--model", recipe.model.name, "--device", "cpu", "--input-size", "3", side, side),
        *("--batch-size", str(recipe.worker_batch), "--workers", str(recipe.inputs.decoders)),
        *("--opt", "sgd" if recipe.optim.nesterov else "momentum"),
        *("--lr", str(recipe.lr(0)), "--momentum", str(recipe.optim.momentum)),
        *("--weight-decay", str(recipe.optim.weight_decay), "--warmup-epochs", "0"),
        # These options switch off what the script would do beyond the recipe.
        *("--color-jitter", "0", "--smoothing", "0", "--train-interpolation", "bilinear"),
        *("--log-interval", "1", "--output", str(folder)),
    ]


TORCHVISION = PeerScript(
    repository="pytorch/vision",
    script="references/classification/train.py",
    version="version.txt",
    step=r"Epoch: \[\d+\]\s+\[\s*\d+/\d+\]",
    arguments=_torchvision,
    fastest=(),  # its --amp is for CUDA alone, and it has no option for the memory format
)
TIMM = PeerScript(
    repository="huggingface/pytorch-image-models",
    script="train.py",
    version="timm/version.py",
    step=r"Train: \d+ \[\s*\d+/\d+",
    arguments=_timm,
    fastest=("--amp", "--amp-dtype", "bfloat16", "--channels-last"),
)
