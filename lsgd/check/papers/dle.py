"""Rules of NVIDIA's DeepLearningExamples for ResNet-50 v1.5: PyTorch, at 729963dd.

code: configs.yml, image_classification/optimizers.py and README of PyTorch/Classification/ConvNets.
Parameters whose name contains "bn" do not decay there. Those of the BN of a shortcut, which is
named downsample.1, and the bias of the last layer do.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lsgd.check.learning_rate import Curve
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "NVIDIA DeepLearningExamples, ResNet-50 v1.5"
WHO = "NVIDIA's example"
NOTE = "code is PyTorch/Classification/ConvNets of NVIDIA/DeepLearningExamples."
WARMUP = 8
DECAYS = {896: 2.0**-14, 2048: 2.0**-15, 4096: 2.0**-15}
"""The weight decay, by minibatch: that of the configuration of float32 is another."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of NVIDIA's example for the recipe's minibatch."""
    size = recipe.batch_size
    if size not in DECAYS:
        return RULES | {"lr_curve": stated.no_row(DECAYS)}
    lr = 1.024 * size / 1024
    text = f"lr of whole epochs: to {lr:g} over {WARMUP} epochs, then half a cosine to 0"
    return RULES | {
        "lr_curve": stated.lr_curve("code", text, _per_epoch(lr)),
        "weight_decay": stated.weight_decay("code", DECAYS[size], biases=True),
        "batchnorm_decay": Rule.equals(
            "code", "that of weights for the BN of shortcuts, none for others", {0.0, DECAYS[size]}
        ),
    }


def _per_epoch(lr: float) -> stated.LrRule:
    def rule(epochs: NDArray[np.float64], last: float) -> Curve:
        epoch = np.floor(epochs)
        falling = lr * (1 + np.cos(math.pi * (epoch - WARMUP) / (last - WARMUP))) / 2
        return np.where(epoch < WARMUP, lr * (epoch + 1) / WARMUP, falling)

    return rule


RULES = {
    **goyal2017.rules_for_section("code", "data", "augmentation", "evaluation_crop"),
    **stated.RESNET50_V15,
    **stated.FAN_IN,
    "resize": stated.resize("code", "bilinear"),
    "last_gamma": stated.last_gamma("code", 1.0),
    "momentum": stated.sgd("code", equation=9, nesterov=False, m=0.875),
    "label_smoothing": stated.label_smoothing("code", 0.1),
    "precision": Rule(
        "code",
        "float32, or mixed with tf32 or float16",
        lambda names: names in ({"float32"}, {"float32", "tf32"}, {"float32", "float16"}),
    ),
    "epochs": Rule("code", "50 or 90", lambda found: found.count in (50, 90) and found.whole),
}
