"""Rules of FFCV's ImageNet training: train_imagenet.py and rn50_configs at 4dd291a."""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
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
        "image_sizes": Rule.equals(
            "configs", f"160, and 192 from epoch {first} on", [(0, 160), (first, 192)]
        ),
    }


RULES = {
    **goyal2017.rules_for_section("code", "augmentation", "model", "stride", "conv_init", "loss"),
    **stated.FC_OF_PYTORCH,
    "data": Rule.equals(
        "code",
        "all of ImageNet-1k, evaluated at 256 x 256",
        ("imagenet", 1_281_167, 50_000, 1000, 3, 256),
    ),
    "resize": Rule.equals("code", "by area", {"area"}),
    "colour": stated.colour_as_stored("code"),
    "evaluation_crop": Rule.equals("code", "the centred 0.875 of the short side", 0.875),
    "mirror": Rule("configs", "logits are added to those of the mirror image", bool),
    "blurpool": Rule.equals("code", "before 6 convolutions with a stride", (6, 0)),
    "last_gamma": stated.last_gamma("code", 1.0),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
    "batchnorm_decay": Rule.equals("code", "1e-4 for the BN of shortcuts, else none", {0.0, 1e-4}),
    "momentum": stated.sgd("code", equation=9, nesterov=False, m=0.9),
    "lr_curve": stated.lr_curve(
        "code",
        "linear from 1.7e-4 to 1.7 at epoch 2, and to 0 at the end",
        stated.by_power(1.7, 2, start=1.7e-4, power=1),
    ),
    "label_smoothing": stated.label_smoothing("configs", 0.1),
    "running_average": Rule.equals("code", "momentum 0.9", 0.9),
    "precision": stated.precision("code", "float16"),
    "phases": Rule.equals("configs", "8 x 512 in all epochs", [(0, 8, 512)]),
}
