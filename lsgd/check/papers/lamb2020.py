"""Rules of You et al. 2020 (LAMB) for ResNet-50 with 32,768 images, from the authors' code.

code: fastalgo/imagenet_resnet50_lamb at b778c4c, whose log has the run's error. The paper's tables
could not be read.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "You et al. 2020, LAMB"
WHO = "the authors' code"
NOTE = "code is that of the authors for ResNet-50 on TPUs."
LR, WARMUP_STEPS, STEPS = 0.04, 782, 3519


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the authors' code of LAMB for ResNet-50."""
    warmup, until = WARMUP_STEPS / recipe.steps_per_epoch, STEPS / recipe.steps_per_epoch
    text = f"from 0 to lr {LR:g} over {WARMUP_STEPS} steps, then linear to 0 at step {STEPS}"
    curve = stated.by_power(LR, warmup, until=until, power=1)
    return RULES | {"lr_curve": stated.lr_curve("code", text, curve)}


SHARED = (
    "data", "augmentation", "resize", "evaluation_crop", "model", "stride", "fc_init", "last_gamma",
    "batchnorm_decay", "running_average",
)  # fmt: skip
RULES = goyal2017.rules_for_section("code", *SHARED) | {
    "colour": stated.colour_as_stored("code"),
    # lsgd starts all convolutions as Goyal et al. 2017 do.
    "conv_init": Rule.unmet("code", "N(0, 1 / fan in), cut at two deviations"),
    "weight_decay": stated.weight_decay("code", 1.5, biases=True, decoupled=True),
    "lamb": stated.lamb("code", "weights", "biases", bias_correction=False),
    # A run of lsgd has no gradient of a worker that it could clip.
    "clip_norm": Rule.unmet("code", "each core's own, to norm 1, before they are summed"),
    "label_smoothing": stated.label_smoothing("code", 0.1),
    "precision": stated.precision("code", "bfloat16"),
    "epochs": stated.steps("code", STEPS),
    "worker_batch": stated.worker_batch("code", 128),
}
