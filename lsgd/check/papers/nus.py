"""Rules of NUS-HPC-AI-Lab, LARS-ImageNet-PyTorch at a8222c6: its README's table and its code."""

import math
from fractions import Fraction

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, lars2017, stated
from lsgd.recipe import Recipe

TITLE = "NUS-HPC-AI-Lab, LARS-ImageNet-PyTorch"
WHO = "the code of NUS"
NOTE = "table is that of its README, by minibatch."
TABLE = {
    512: (Fraction(10, 64), 64), 1024: (Fraction(10, 32), 128), 4096: (Fraction(10, 8), 128),
    8192: (Fraction(10, 4), 128), 16384: (Fraction(5), None), 32768: (Fraction(14), None),
}  # fmt: skip
"""The warmup epochs and the images per GPU, by minibatch.
The number of images is None where the README does not state the number of GPUs."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the NUS code for LARS and of its table's row for the minibatch."""
    batch_size = recipe.batch_size
    if batch_size not in TABLE:
        return RULES | {"warmup": stated.no_row(TABLE)}
    epochs, n = TABLE[batch_size]
    lr = 4 * math.sqrt(batch_size / 512)
    text = f"from 0 to lr {lr:.3g} over {float(epochs):g} epochs"
    of_the_row = {"warmup": stated.warmup("table", text, lr, float(epochs))}
    if n:
        of_the_row["worker_batch"] = stated.worker_batch("table", n)
    return RULES | of_the_row


SHARED = ("data", "augmentation", "evaluation_crop", "model", "conv_init", "stride")
RULES = {
    **goyal2017.rules_for_section("code", *SHARED, "batchnorm_decay"),
    **stated.FC_OF_PYTORCH,
    "resize": stated.resize("code", "bilinear"),
    "colour": stated.colour_as_stored("code"),
    "last_gamma": stated.last_gamma("code", 1.0),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=False),
    # lsgd cannot scale an update after the momentum, so no run can follow this rule.
    "lars": Rule.unmet(
        "code",
        "lr and ratio behind the momentum, m = 0.9; ratios of at most 50, decayed gradients of "
        "-10 to 10",
    ),
    "label_smoothing": stated.smoothing_over_others("code"),
    "decay": lars2017.RULES["decay"],
    "epochs": stated.epochs("table", 90),
}
