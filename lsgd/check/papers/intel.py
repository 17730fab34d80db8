"""Rules of Intel's submissions to DAWNBench: intel/caffe, models/intel_optimized_models/multinode.

Their initialisation, their augmentation and the decay of BN could not be read.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "Intel Caffe, DAWNBench"
WHO = "Intel's configuration"
NOTE = "code is that of intel/caffe, with its configurations for 2,048 and 4,096 images."
TABLE = {2048: 0.8, 4096: 1.6}
"""The lr, by minibatch."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Intel's configuration for the recipe's minibatch."""
    if recipe.batch_size not in TABLE:
        return RULES | {"lr_curve": stated.no_row(TABLE)}
    lr = TABLE[recipe.batch_size]
    text = f"from 0.1 to lr {lr} over 3 epochs, a tenth at 30, 60 and 80"
    curve = stated.by_drops(lr, 3, 30, 60, 80, start=0.1)
    return RULES | {"lr_curve": stated.lr_curve("code", text, curve)}


RULES = {
    **goyal2017.rules_for_section("code", "data"),
    **stated.RESNET50,
    "momentum": stated.sgd("code", equation=10, nesterov=False, m=0.9),
    "weight_decay": stated.decay_of_weights("code", 1e-4),
    "epochs": stated.epochs("code", 90),
}
