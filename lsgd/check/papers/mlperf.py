"""Rules of MLPerf Training for ResNet-50 v1.5, last valid for 4.0, and its reference code.

rules: training_rules.adoc of mlcommons/training_policies at d73e20f, the rows of LARS and of SGD.
code: retired_benchmarks/resnet-tf2 of mlcommons/training at aa344c7.
Minibatch, epochs, warmup epochs and BN group size are free, and so is the lr of LARS.
"""

import math

from lsgd.check.learning_rate import Parabola, Warmup
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import Lars, Momentum, WeightDecayGroups
from lsgd.recipe import Recipe

TITLE = "MLPerf Training, ResNet-50 v1.5"
WHO = "MLPerf"
NOTE = "rules are those of MLPerf Training 4.0, code is its reference of ResNet-50."
FREE_FROM = 32_768
"""The minibatch from which the momentum of LARS is free."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return MLPerf's rules for ResNet-50, with those for the recipe's optimizer."""
    return RULES | (of_lars(recipe.batch_size) if recipe.optim.name == "lars" else OF_SGD)


def _power_of_two(decays: frozenset[float]) -> bool:
    """Return whether these weight decays are a single one, 1e-4 times a power of two."""
    if len(decays) != 1 or not min(decays) > 0:
        return False
    power = math.log2(min(decays) / 1e-4)
    return abs(power - round(power)) < 1e-9


def _rises_from_0(warmup: Warmup) -> bool:
    own = warmup.own
    epochs = float(own.epochs[own.lrs.argmax()])
    return epochs.is_integer() and own.rises(0.0, float(own.lrs.max()), epochs)


def _to_its_end(decay: Parabola | None) -> bool:
    return decay is not None and abs(decay.end - 1e-4) < 1e-7


def of_lars(batch_size: int) -> dict[str, Rule]:
    """Return MLPerf's rules for the LARS optimizer and weight decay with this minibatch."""

    def updates(lars: Lars) -> bool:
        m = lars.m if batch_size >= FREE_FROM else 0.9
        return lars == Lars(10, False, m, 0.001, 0.0, frozenset(["weights"]))

    def decays(found: WeightDecayGroups) -> bool:
        return _power_of_two(found.weights) and not any(found.biases) and not found.untouched

    return {
        "lars": Rule(
            "rules",
            "as equation (10), m = 0.9 and free from 32,768 images on, trust 0.001, eps 0; BN and "
            "biases are not scaled",
            updates,
        ),
        "weight_decay": Rule("rules", "1e-4 times a power of two, none on biases", decays),
    }


OF_SGD = {
    "momentum": Rule(
        "rules",
        "m = 0.9",
        lambda found: (
            found is not None
            and found == Momentum(found.equation, found.nesterov, 0.9, None)
            and found.equation in (9, 10)
        ),
    ),
    "weight_decay": Rule(
        "rules",
        "1e-4 times a power of two",
        lambda found: _power_of_two(found.weights) and not found.untouched,
    ),
    "peak_lr": Rule(
        "rules",
        "a multiple of 0.001",
        lambda lr: lr > 0.0005 and math.isclose(round(lr * 1000) / 1000, lr),
    ),
}
RULES = {
    **goyal2017.rules_for_section("rules", "data"),
    **goyal2017.rules_for_section("code", "fc_init", "batchnorm_decay"),
    **stated.RESNET50_V15,
    **stated.FAN_IN,
    **stated.BATCHNORM,
    "augmentation": stated.crops("code", (0.05, 1.0), (3 / 4, 4 / 3)),
    "resize": stated.resize("code", "bilinear"),
    "colour": stated.colour_as_stored("code"),
    "evaluation_crop": stated.evaluation_crop("code", 256),
    "last_gamma": Rule(
        "code",
        "1 in the last BN of each block; 0 in Google's and by an option of NVIDIA's code",
        lambda gammas: gammas in ({0.0}, {1.0}),
    ),
    "label_smoothing": Rule("rules", "none or 0.1", lambda share: share in (0, 0.1)),
    "warmup": Rule("rules", "from 0, every step, over whole epochs", _rises_from_0),
    "decay": Rule("rules", "by power 2 to lr 0.0001", _to_its_end),
    "evaluation_epochs": Rule.equals("rules", "every 4 epochs", {4}),
    "metric": stated.epochs_to("rules", 24.1),
}
