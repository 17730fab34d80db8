"""Rules of fast.ai's and DIU's ImageNet training: diux-dev/imagenet18 at a61ced3, by machine."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsgd.check.learning_rate import Curve
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "fast.ai's and DIU's ImageNet training"
WHO = "DIU"
NOTE = "train is train.py, by the number of GPUs; code is training/ beside it."
EXAMPLES = 1_281_167


class TrainingPhase(NamedTuple):
    """Epochs from a first one on, with their image size, images per GPU, and first and last lr."""

    epoch: int
    side: int
    n: int
    lr: float
    last_lr: float


MACHINES = {
    128: (50, [
        (0, 128, 64, 1.88, 3.76), (6, 128, 128, 3.76, 3.76), (16, 224, 64, 1.88, 1.88),
        (19, 224, 192, 0.564, 0.564), (31, 224, 192, 0.0564, 0.0564),
        (37, 288, 128, 0.0376, 0.0376), (38, 288, 128, 0.00376, 0.00376),
    ]),
    64: (36, [
        (0, 128, 128, 1.92, 3.84), (6, 128, 256, 3.84, 3.84), (11, 128, 256, 3.84, 1.92),
        (14, 224, 128, 1.92, 1.92), (17, 224, 224, 1.92, 0.336), (23, 224, 224, 0.336, 0.0336),
        (29, 288, 128, 0.0192, 0.00192),
    ]),
    32: (30, [
        (0, 128, 256, 2.0, 4.0), (6, 128, 512, 4.0, 4.0), (11, 128, 512, 4.0, 2.0),
        (13, 224, 224, 1.75, 1.75), (16, 224, 224, 1.75, 0.175), (24, 224, 224, 0.175, 0.0175),
        (28, 288, 128, 0.01, 0.001),
    ]),
    8: (28, [
        (0, 128, 512, 1.0, 2.0), (7, 128, 512, 2.0, 0.25), (13, 224, 224, 0.4375, 0.04375),
        (22, 224, 224, 0.04375, 0.004375), (25, 288, 128, 0.0025, 0.00025),
    ]),
}  # fmt: skip
"""The epochs of a run and its phases, by the number of GPUs."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of DIU's code, with the phases of its run on as many GPUs."""
    if recipe.workers not in MACHINES:
        known = ", ".join(map(str, MACHINES))
        return RULES | {"phases": Rule.unmet("train", f"there are runs on {known} GPUs")}
    end, rows = MACHINES[recipe.workers]
    phases = [TrainingPhase(*row) for row in rows]
    minibatches = [(p.epoch, recipe.workers, p.n) for p in phases]
    sizes = _changes([(phase.epoch, phase.side) for phase in phases])
    crops = [(epoch, side, int(side * 1.14), 128 * (side == 288)) for epoch, side in sizes]
    return RULES | {
        "phases": Rule.equals(
            "train",
            "minibatches "
            + ", ".join(f"{k * n} from {epoch}" for epoch, k, n in minibatches[:3])
            + ", …",
            _changes(minibatches),
        ),
        "evaluation_crop": Rule.equals(
            "code",
            "short side 1.14 times the size, and rectangles of 128 images in the last phase",
            crops,
        ),
        "image_sizes": Rule.equals("train", "128, then 224 and 288 pixels", sizes),
        "lr_curve": stated.lr_curve(
            "train",
            f"from {phases[0].lr:g} to {phases[-1].last_lr:g}, linear in a phase, whose steps are "
            "counted from 1",
            _linear_in_phases(phases, recipe.workers, end),
        ),
        "epochs": Rule("train", f"{end} at most", lambda epochs: epochs.most == end),
    }


def _changes(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the rows (epoch, values) whose values are not those of the row before."""
    return [row for i, row in enumerate(rows) if not i or row[1:] != rows[i - 1][1:]]


def _linear_in_phases(phases: Sequence[TrainingPhase], k: int, end: int) -> stated.LrRule:
    """Return an lr that is linear within each phase, whose steps are counted from 1."""
    begins, _, n, first, last = np.array(phases).T
    lengths = np.diff([*begins, end])
    steps = np.ceil(EXAMPLES / (k * n))

    def rule(epochs: NDArray[np.float64], _: float) -> Curve:
        i = np.searchsorted(begins, epochs, side="right") - 1
        share = (epochs - begins[i] + 1 / steps[i]) / lengths[i]
        lrs: Curve = first[i] + (last[i] - first[i]) * share
        return lrs

    return rule


SHARED = (
    "model", "stride", "conv_init", "fc_init", "last_gamma", "batchnorm_decay", "loss",
)  # fmt: skip
RULES = goyal2017.rules_for_section("code", *SHARED) | {
    "data": Rule.equals(
        "train",
        "all of ImageNet-1k, evaluated at 288 in the last phase",
        ("imagenet", 1_281_167, 50_000, 1000, 3, 288),
    ),
    "augmentation": Rule.unmet("train", "area from 8 % on, from 8.7 % at 224 and 50 % at 288"),
    "resize": stated.resize("code", "bilinear"),
    "colour": stated.colour_as_stored("code"),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
    "momentum": stated.sgd("code", equation=9, nesterov=False, m=0.9),
    "tail": Rule("code", "a smaller last step", lambda is_dropped: not is_dropped),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "running_average": Rule.equals("code", "momentum 0.9", 0.9),
    "precision": stated.precision("code", "float16"),
}
