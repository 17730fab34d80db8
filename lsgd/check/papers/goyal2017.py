"""Rules of Goyal et al. 2017 and of fb.resnet.torch, which section 5.1 cites ("as in [12]")."""

import math
from dataclasses import replace

from lsgd.check.images import FB_RESNET_COLOURS, CropSamples
from lsgd.check.learning_rate import RunLength, Warmup
from lsgd.check.observation import Rule
from lsgd.check.step import Momentum, WeightDecayGroups
from lsgd.recipe import Recipe
from lsgd.rules import augmentation

TITLE = "Goyal et al. 2017"
WHO = "the paper"
NOTE = "[12] is fb.resnet.torch, to which section 5.1 refers for the augmentation of images."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Goyal et al. 2017 that apply to this recipe.

    A property that the paper lacks, such as label smoothing, has a rule only if the recipe uses it.
    """
    absent = set()
    if recipe.averaging.name == "none":
        absent.add("averaging")
    if recipe.data.balance == "none":
        absent.add("balance")
    absent |= EXTRAS - _used_extras(recipe) - {"running_average"}
    return {name: rule for name, rule in RULES.items() if name not in absent}


def rules_of_extras(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of any source against the EXTRAS that this recipe uses."""
    rules = {name: replace(RULES[name], section="any") for name in _used_extras(recipe)}
    if "image_sizes" in rules:
        side = recipe.data.image_size
        rules["image_sizes"] = Rule.equals("any", f"{side} x {side} in all epochs", [(0, side)])
    return rules


EXTRAS = frozenset(
    (
        "mixing", "batch_growth", "image_sizes", "loss", "blurpool", "mirror", "label_smoothing",
        "running_average", "clip_norm", "head_lr", "dropout",
    )
)  # fmt: skip
"""The rules against changes of loss, network, images, minibatch or update that few sources have."""


def _used_extras(recipe: Recipe) -> set[str]:
    """Return the names of the rules in EXTRAS whose settings a recipe uses."""
    uses = {
        "mixing": recipe.data.mixup or recipe.data.cutmix,
        "batch_growth": len(recipe.stages) > 1,
        "image_sizes": recipe.image_sizes.points,
        "loss": recipe.loss != "cross_entropy",
        "blurpool": recipe.model.blurpool != "none",
        "mirror": recipe.evaluation.mirror,
        "label_smoothing": recipe.label_smoothing,
        "running_average": recipe.bn_statistics.name != "moving",
        # The clipping of momentum SGD is in the rule for momentum, which all its sources have.
        "clip_norm": recipe.optim.name != "sgd" and recipe.optim.clip_norm is not None,
        "head_lr": recipe.optim.head_lr is not None,
        "dropout": True,  # only networks with such layers have an observation of it
    }
    return {name for name, is_used in uses.items() if is_used}


def _warms_up(warmup: Warmup) -> bool:
    # An lr that does not grow with the minibatch needs no warmup.
    full = float(warmup.larger_run.lrs.max())
    return warmup.starts_at_full_lr and (
        full == warmup.reference or warmup.larger_run.rises(warmup.reference, full, 5)
    )


def _is_cropped(windows: CropSamples | None) -> bool:
    return windows is not None and windows.has_ranges((0.08, 1.0), (3 / 4, 4 / 3))


def _every_epoch(epochs: RunLength) -> bool:
    return epochs.count == 90 and epochs.whole


RULES = {
    "data": Rule.equals(
        "5.1", "all of ImageNet-1k at 224 x 224", ("imagenet", 1_281_167, 50_000, 1000, 3, 224)
    ),
    "normalisation": Rule("5.1", "by the mean and standard deviation of each colour", bool),
    "augmentation": Rule("5.1, [12]", "area 8 to 100 %, aspect 3/4 to 4/3, flip 0.5", _is_cropped),
    "resize": Rule.equals("5.1, [12]", "bicubic", {"bicubic"}),
    "colour": Rule.equals(
        "[12]",
        "jitter by 0.6 to 1.4, lighting of standard deviation 0.1; named in fb.resnet.torch only",
        FB_RESNET_COLOURS,
    ),
    "evaluation_crop": Rule.equals("[12]", "short side 256, centre 224", augmentation.CROP_RATIO),
    "model": Rule("5.1", "ResNet-50, 161 tensors", bool),
    "stride": Rule.equals("5.1", "stride 2 in the 3 x 3 convolution of a block", {(3, 3)}),
    "conv_init": Rule.equals("5.1", "He: N(0, 2 / fan out)", "out"),
    "fc_init": Rule.equals("5.1", "N(0, 0.01²) and bias 0", 0.01),
    "last_gamma": Rule(
        "5.1", "0 in the last BN of each residual block", lambda gammas: not any(gammas)
    ),
    "other_gammas": Rule("5.1", "1, and all beta 0", bool),
    "weight_decay": Rule(
        "3, 5.1",
        "1e-4 of conv and fc weights and of the fc bias, by the optimizer and not scaled with k",
        lambda decays: (
            decays == WeightDecayGroups(frozenset([1e-4]), decays.biases, 0)
            and decays.biases <= {1e-4}
        ),
    ),
    "batchnorm_decay": Rule(
        "5.1", "none on gamma and beta of any BN", lambda decays: not any(decays)
    ),
    "momentum": Rule.equals(
        "3, 5.1",
        "equation (9), Nesterov, m = 0.9; a change of lr leaves the momentum as it is",
        Momentum(9, nesterov=True, m=0.9, clip_norm=None),
    ),
    "label_smoothing": Rule.equals(
        "5.1", "none: the loss is the cross-entropy of the labels as they are", 0
    ),
    "running_average": Rule.equals("5.1", "momentum 0.9, once per step", 0.9),
    "precision": Rule.equals("4", "float32", {"float32"}),
    "gradient_compression": Rule(
        "4", "none: gradients are summed as float32", lambda compresses: not compresses
    ),
    "clip_norm": Rule("5.1", "none", lambda limit: limit is None),
    "head_lr": Rule("5.1", "the last layer has the lr of the others", lambda lr: lr is None),
    "reference_lr": Rule(
        "5.1",
        "lr 0.1 for 256 images",
        # 0.0125 for 32 images has the paper's ratio, but not the lr at the start of its warmup.
        lambda found: found[1:] == (256,) and math.isclose(found[0], 0.1),
    ),
    "scaling": Rule(
        "2.1", "twice the minibatch, twice the lr", lambda ratio: math.isclose(ratio, 2)
    ),
    "warmup": Rule(
        "2.2",
        "gradual, every step, from the reference lr, over 5 epochs, and only above the reference",
        _warms_up,
    ),
    "drops": Rule.equals("5.1", "lr divided by 10 at epochs 30, 60, 80", ([30, 60, 80], True)),
    "epochs": Rule("5.1", "90, for every minibatch", _every_epoch),
    "worker_batch": Rule.equals("2.3, 5.1", "n = 32", {32}),
    "tail": Rule("2.1", "every step has kn images", bool),
    "averaging": Rule.equals("5.1", "none: the weights of the last step", ("none",)),
    "balance": Rule.equals("5.1", "none: every image once per epoch, with weight 1", "none"),
    "mixing": Rule(
        "5.1", "none: an image is one image of the dataset", lambda alphas: not any(alphas)
    ),
    "batch_growth": Rule("5.1", "one minibatch for the whole run", lambda sizes: len(sizes) == 1),
    "image_sizes": Rule.equals("5.1", "224 x 224 in all epochs", [(0, 224)]),
    "loss": Rule.equals("5.1", "cross-entropy", ("cross_entropy", "")),
    "blurpool": Rule.equals("5.1", "none", (0, 0)),
    "dropout": Rule("5.1", "none, nor stochastic depth", lambda rates: not rates),
    "mirror": Rule("5.1", "none: one evaluation of each image", lambda mirrors: not mirrors),
    "metric": Rule.equals(
        "5.1", "median top-1 error of the last 5 epochs", "median top-1 error of the last 5 epochs"
    ),
}

COMMON_NAMES = ("normalisation", "other_gammas", "tail", "averaging", "balance")
COMMON_RULES = {name: replace(RULES[name], section="any") for name in COMMON_NAMES}
"""The rules of Goyal et al. 2017 that hold for any source."""


def rules_for_section(section: str, *names: str) -> dict[str, Rule]:
    """Return the named rules of Goyal et al. 2017 as rules of a section of another source.

    COMMON_RULES are among them.
    """
    return COMMON_RULES | {name: replace(RULES[name], section=section) for name in names}
