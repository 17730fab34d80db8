"""Rules of NVIDIA's submissions to MLPerf Training 0.5: ResNet-50 v1.5 by momentum SGD.

code: NVIDIA's MXNet submission in mlcommons/training_results_v0.5 at c71f2e7 (config_*.sh,
common/fit.py). The log says that BN does not decay; stock MXNet of that time decays its gamma.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "MLPerf Training 0.5, NVIDIA"
WHO = "NVIDIA's code for MLPerf 0.5"
NOTE = "code is NVIDIA's submission in MXNet, table its configurations, by minibatch."
TABLE = {
    1664: (0.6, 5, 208),
    4096: (1.8, 8, 256),
    16384: (4.096, 15, 32),
    16640: (4.1, 15, 26),
}
"""The lr, the warmup epochs and the images per BN statistic, by minibatch."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of NVIDIA's code and of its configuration for the recipe's minibatch."""
    if recipe.batch_size not in TABLE:
        return RULES | {"lr_curve": stated.no_row(TABLE)}
    lr, warmup, span = TABLE[recipe.batch_size]
    text = f"from 0 to lr {lr:g} over {warmup} epochs, a tenth at 30, 60 and 80"
    return RULES | {
        "lr_curve": stated.lr_curve("table", text, stated.by_drops(lr, warmup, 30, 60, 80)),
        "worker_batch": stated.worker_batch("table", span),
    }


RULES = {
    **goyal2017.rules_for_section("code", "data"),
    **stated.RESNET50_V15,
    **stated.FAN_IN,
    **stated.BATCHNORM,
    "augmentation": stated.crops("code", (0.05, 1.0), (3 / 4, 4 / 3)),
    "last_gamma": stated.last_gamma("code", 1.0),
    "momentum": stated.sgd("code", equation=10, nesterov=False, m=0.9),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=False),
    "batchnorm_decay": Rule.equals("code", "1e-4 of gamma, as in stock MXNet", {0.0, 1e-4}),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "precision": stated.precision("code", "float16"),
    "evaluation_epochs": Rule.equals("code", "every 4 epochs", {4}),
    "metric": stated.epochs_to("code", 25.1),
}
