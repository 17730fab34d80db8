"""Rules of the run that set AlgoPerf's target for ResNet-50, with 1,024 images.

code: mlcommons/algorithmic-efficiency at 2c90454. The run has 146,999 steps, 0.75 times the 195,999
that a submission may make.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "AlgoPerf, target of ResNet-50"
WHO = "AlgoPerf's target run"
NOTE = "code is that of mlcommons/algorithmic-efficiency."
LR, M, WD = 4.131896390902391, 1 - 0.0725241887, 5.6687777e-6
WARMUP, END, STEPS = 6999, 133_107, 146_999
"""The steps of the warmup, the step at which the decay ends, and those of the run."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of AlgoPerf's target run."""
    warmup, until = WARMUP / recipe.steps_per_epoch, END / recipe.steps_per_epoch
    curve = stated.by_power(LR, warmup, end=0.001 * LR, until=until, power=1)
    text = f"from 0 to lr {LR:.4f} over {WARMUP} steps, linear to a thousandth at step {END}"
    return RULES | {"lr_curve": stated.lr_curve("code", text, curve)}


RULES = {
    **goyal2017.rules_for_section("code", "data"),
    **stated.RESNET50,
    "last_gamma": stated.last_gamma("code", 0.0),
    "momentum": stated.sgd("code", equation=9, nesterov=False, m=M),
    "weight_decay": stated.decay_of_weights("code", WD),
    "label_smoothing": stated.label_smoothing("code", 0.2),
    "epochs": stated.steps("code", STEPS),
}
