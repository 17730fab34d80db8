"""Rules of NUS-HPC-AI-Lab, pytorch-lamb at 638a309: its README's table and its code."""

import math

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, nus, stated
from lsgd.recipe import Recipe

TITLE = "NUS-HPC-AI-Lab, pytorch-lamb"
WHO = "the code of NUS for LAMB"
NOTE = "table is that of its README, by minibatch."
TABLE = {4096: 2.5, 8192: 5, 16384: 10, 32768: 20}
"""The warmup epochs, by minibatch."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the NUS code for LAMB and of its table's row for the minibatch."""
    batch_size = recipe.batch_size
    if batch_size not in TABLE:
        return RULES | {"lr_curve": stated.no_row(TABLE)}
    warmup, lr = TABLE[batch_size], 0.04 * math.sqrt(batch_size / 32768)
    text = f"from 0 to lr {lr:.3g} over {warmup:g} epochs, then linear to 0 at the end"
    return RULES | {
        "lr_curve": stated.lr_curve("table", text, stated.by_power(lr, warmup, power=1))
    }


SAME = ("resize", "colour", "last_gamma", "fc_init", "batchnorm_decay", "label_smoothing")
RULES = {
    **goyal2017.rules_for_section("code", *nus.SHARED),
    **{name: nus.RULES[name] for name in SAME},
    "weight_decay": stated.weight_decay("code", 1.5, biases=False, decoupled=True),
    "lamb": stated.lamb("code", "weights", bias_correction=False),
    "clip_norm": Rule.equals("code", "the mean of all workers, to norm 1", 1),
    "epochs": stated.epochs("code", 90),
    "worker_batch": stated.worker_batch("code", 64),
}
