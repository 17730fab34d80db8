"""Rules of dm-haiku's ImageNet example: google-deepmind/dm-haiku at 02f2fab and 893e975.

The later one smooths labels and has 128 images per device; all else is the same.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "dm-haiku, ResNet-50 v2"
WHO = "dm-haiku's example"
NOTE = "code is examples/imagenet of dm-haiku, README its table, by minibatch."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of dm-haiku's example, with smoothed labels or without."""
    lr, share = recipe.batch_size / 2560, recipe.label_smoothing
    text = f"from 0 to lr {lr:g} over 5 epochs, a tenth at 30, 60 and 80"
    return RULES | {
        "model": Rule(
            "code", "pre-activation ResNet-50", lambda _: recipe.model.name == "resnet50_v2"
        ),
        "lr_curve": stated.lr_curve("code", text, stated.by_drops(lr, 5, 30, 60, 80)),
        "label_smoothing": stated.label_smoothing("README", 0.1 if share else 0.0),
        "worker_batch": stated.worker_batch("README", 128 if share else 32),
    }


RULES = {
    **goyal2017.rules_for_section("code", "data", "augmentation", "resize", "batchnorm_decay"),
    **stated.STRIDE,
    **stated.BATCHNORM,
    "conv_init": Rule.unmet("code", "truncated normal of variance 1 / fan in"),
    "fc_init": Rule.unmet("code", "0"),
    "last_gamma": stated.last_gamma("code", 1.0),
    "momentum": stated.sgd("code", equation=9, nesterov=True, m=0.9),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
    "epochs": stated.epochs("code", 90),
}
