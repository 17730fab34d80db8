"""Rules of FFCV's ImageNet training: train_imagenet.py and rn50_configs at 4dd291a."""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import Momentum, WeightDecayGroups
from lsgd.recipe import Recipe

TITLE = "FFCV's ImageNet training"
WHO = "FFCV"
NOTE = "code is train_imagenet.py, configs are rn50_configs, by the number of epochs."
FIRST_AT_192 = {16: 12, 24: 19, 32: 25, 40: 32, 56: 45, 88: 71}
"""The first epoch, from 0, of images of 192 pixels, by the number of epochs."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of FFCV's code, and of its configuration for the number of epochs."""
    first = FIRST_AT_192.get(recipe.epochs)
    return RULES | {
        "image_sizes": Rule(
            "configs",
            f"160, and 192 from epoch {first} on",
            lambda sizes: sizes == [(0, 160), (first, 192)],
        ),
    }


RULES = (
    goyal2017.COMMON_RULES
    | goyal2017.rules_for_section("code", "augmentation", "model", "stride", "conv_init")
    | {
        "data": Rule(
            "code",
            "all of ImageNet-1k, evaluated at 256 x 256",
            lambda found: found == ("imagenet", 1_281_167, 50_000, 1000, 3, 256),
        ),
        "resize": Rule("code", "by area", lambda filters: filters == {"area"}),
        "colour": Rule("code", "as stored", lambda colour: colour == "as stored"),
        "evaluation_crop": Rule("code", "the centred 0.875 of the short side", bool),
        "mirror": Rule("configs", "logits are added to those of the mirror image", bool),
        "blurpool": Rule(
            "code", "before 6 convolutions with a stride", lambda counts: counts == (6, 0)
        ),
        "fc_init": Rule("code", "as PyTorch starts linear layers", lambda std: std != 0.01),
        "last_gamma": Rule("code", "1, as in torchvision", lambda gammas: gammas == {1.0}),
        "weight_decay": Rule(
            "code",
            "1e-4 of weights and of the fc bias",
            lambda decays: (
                decays == WeightDecayGroups(frozenset([1e-4]), frozenset([1e-4]), untouched=0)
            ),
        ),
        "batchnorm_decay": Rule(
            "code", "1e-4 for the BN of shortcuts, else none", lambda decays: decays == {0.0, 1e-4}
        ),
        "momentum": Rule(
            "code",
            "equation (9), not Nesterov, m = 0.9",
            lambda momentum: momentum == Momentum(9, nesterov=False, m=0.9, clip_norm=None),
        ),
        "lr_curve": stated.lr_curve(
            "code",
            "linear from 1.7e-4 to 1.7 at epoch 2, and to 0 at the end",
            stated.by_power(1.7, 2, start=1.7e-4, power=1),
        ),
        "label_smoothing": Rule("configs", "0.1", lambda share: share == 0.1),
        "loss": Rule("code", "cross-entropy", lambda loss: loss == ("cross_entropy", "")),
        "running_average": Rule("code", "momentum 0.9", lambda m: m == 0.9),
        "precision": Rule("code", "float16", lambda names: names == {"float16", "float32"}),
        "phases": Rule("configs", "8 x 512 in all epochs", lambda phases: phases == [(0, 8, 512)]),
    }
)
