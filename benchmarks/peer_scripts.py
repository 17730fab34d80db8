"""The trainings that benchmarks.peers compares: two scripts of others, and lsgd.

Each is the same training as far as their options allow: network, images, crops and flips, batch,
lr, momentum and weight decay, one thread, as many loaders, and a line for each step.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.outside import Training
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.run.provenance import commit_of

Start = Callable[[Path], Training]
"""A function that makes the training which writes into this folder."""

RUN_SCRIPT = [sys.executable, "-m", "benchmarks.run_script"]


@dataclass(frozen=True)
class Peer:
    """Another project's training script, in a checkout of that project."""

    repository: str
    script: str
    version: str
    """The file that has the version of the checkout."""
    step: str
    """As in Training."""
    words: Callable[[Recipe, Path], Sequence[str]]
    """The words by which the script makes the training of a recipe, into a folder."""

    def check(self, checkout: Path) -> None:
        """Raise Refused if this is no checkout of the project."""
        for file in (self.script, self.version):
            if not (checkout / file).is_file():
                raise Refused(
                    f"{checkout} has no {file}; give a checkout of github.com/{self.repository}"
                )

    def described(self, checkout: Path) -> str:
        """What identifies the script: version and commit, or version and content without git."""
        found = re.search(r"\d[\w.+]*", (checkout / self.version).read_text())
        if commit := commit_of(checkout):
            where = f"commit {commit}"
        else:
            digest = hashlib.sha256((checkout / self.script).read_bytes()).hexdigest()
            where = f"not a git checkout, sha256 of the script {digest[:12]}"
        return f"{self.repository} {found[0] if found else 'unknown'}, {self.script}, {where}"

    def start(self, checkout: Path, recipe: Recipe) -> Start:
        """The script, unchanged, with the training of this recipe."""

        def of_folder(folder: Path) -> Training:
            script = str(checkout / self.script)
            return Training([*RUN_SCRIPT, script, *self.words(recipe, folder)], self.step)

        return of_folder


def lsgd(words: Sequence[str], environment: Mapping[str, str] = {}) -> Start:
    """lsgd's own training, by the words of a recipe."""

    def of_folder(folder: Path) -> Training:
        command = [sys.executable, "-m", "lsgd.train", *words, f"run_dir={folder / 'run'}"]
        return Training(command, r"step \d+/", environment)

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
        # Of what it would do beyond the recipe: nothing.
        *("--color-jitter", "0", "--smoothing", "0", "--train-interpolation", "bilinear"),
        *("--log-interval", "1", "--output", str(folder)),
    ]


TORCHVISION = Peer(
    repository="pytorch/vision",
    script="references/classification/train.py",
    version="version.txt",
    step=r"Epoch: \[\d+\]\s+\[\s*\d+/\d+\]",
    words=_torchvision,
)
TIMM = Peer(
    repository="huggingface/pytorch-image-models",
    script="train.py",
    version="timm/version.py",
    step=r"Train: \d+ \[\s*\d+/\d+",
    words=_timm,
)
