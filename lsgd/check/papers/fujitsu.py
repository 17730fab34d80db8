"""Rules of Fujitsu's open submission to MLPerf Training 0.6: 86,016 images by LARS.

code: Fujitsu's folder in mlcommons/training_results_v0.6 at f312518. Its LARS has the product of
the decay and the full lr in its denominator, where other codes have the decay.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "MLPerf Training 0.6, Fujitsu, open division"
WHO = "Fujitsu's code"
NOTE = "code is Fujitsu's submission in MXNet."
LR, WARMUP, END = 13.0, 36, 1320
"""The full lr, the warmup epochs, and the step at which the decay ends."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Fujitsu's code for 86,016 images."""
    until = END / recipe.steps_per_epoch
    # Its warmup counts updates from 1, by which it is one step early.
    curve = stated.by_power(LR, WARMUP, start=LR / 540, end=0.0025 * LR, until=until, power=2.2)
    text = f"to lr 13 over {WARMUP} epochs, power 2.2 to 0.0325 at step {END}; to 0.3 %"
    return RULES | {"lr_curve": stated.lr_curve("code", text, curve, within=0.003)}


RULES = {
    **goyal2017.rules_for_section("code", "data", "batchnorm_decay"),
    **stated.RESNET50,
    **stated.BATCHNORM,
    "augmentation": stated.crops("code", (0.05, 0.9), (2 / 3, 3 / 2), epochs=85),
    "last_gamma": stated.last_gamma("code", 1.0),
    "weight_decay": stated.weight_decay("code", 5e-5, biases=False),
    "lars": stated.lars("code", equation=10, m=0.96, trust=0.0025, eps=1e-9, ratio_decay=6.5e-4),
    "label_smoothing": stated.smoothing_over_others("code"),
    "precision": stated.precision("code", "float16"),
    "epochs": stated.epochs("code", 90),
    "worker_batch": stated.worker_batch("code", 42),
}
