"""Rules of Google's Cloud TPU reference of ResNet-50: tensorflow/tpu, branch r1.12 at 3e61779.

With LARS its code also has the L2 loss of all tensors but those of BN, which decays them twice.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "Cloud TPU reference, ResNet-50"
WHO = "the Cloud TPU reference"
NOTE = "code is models/official/resnet of tensorflow/tpu, table its settings, by minibatch."
IMAGES = 1_281_167
SGD = {1024: 0.4, 4096: 1.6}
"""The lr of Nesterov SGD, by minibatch."""
LARS = {16384: (25, 5, 7117), 32768: (34, 12, 3559)}
"""The lr, the warmup epochs and the step at which the decay ends, by minibatch."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the Cloud TPU reference for the recipe's minibatch."""
    size = recipe.batch_size
    if size in SGD:
        lr = SGD[size]
        text = f"from 0 to lr {lr:g} over 5 epochs, a tenth at 30, 60 and 80"
        return RULES | {
            "lr_curve": stated.lr_curve("table", text, stated.by_drops(lr, 5, 30, 60, 80)),
            "momentum": stated.sgd("code", equation=9, nesterov=True, m=0.9),
            "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
            "label_smoothing": stated.label_smoothing("table", 0.0),
        }
    if size in LARS:
        lr, warmup, end = LARS[size]
        # Its epochs have a fraction of a step more than those here.
        whole = warmup * IMAGES / size / (IMAGES // size)
        curve = stated.by_power(lr, whole, end=1e-4, until=end / recipe.steps_per_epoch)
        text = f"from 0 to lr {lr} over {warmup} epochs, power 2 to 1e-4 at step {end}"
        return RULES | {
            "lr_curve": stated.lr_curve("table", text, curve),
            "lars": stated.lars("code", equation=10, m=0.9, trust=0.001, eps=0.0),
            "weight_decay": Rule.unmet("code", "1e-4 by LARS, and as much by the loss"),
            "label_smoothing": stated.label_smoothing("table", 0.1),
        }
    return RULES | {"lr_curve": stated.no_row(SGD | LARS)}


RULES = {
    **goyal2017.rules_for_section(
        "code", "data", "augmentation", "resize", "evaluation_crop", "fc_init", "batchnorm_decay"
    ),
    **stated.RESNET50_V15,
    **stated.BATCHNORM,
    "last_gamma": stated.last_gamma("code", 0.0),
    "precision": stated.precision("code", "bfloat16"),
    "epochs": stated.epochs("table", 91),
}
