"""Rules of NUS-HPC-AI-Lab, LARS-ImageNet-PyTorch at a8222c6: its README's table and its code."""

import math
from fractions import Fraction

from lsgd.check.learning_rate import Warmup
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017
from lsgd.check.papers.lars2017 import decay_to_0
from lsgd.check.step import WeightDecayGroups
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
        known = ", ".join(f"{each:,}" for each in TABLE)
        return RULES | {"warmup": Rule("table", f"there are rows for {known}", lambda _: False)}
    epochs, n = TABLE[batch_size]
    lr = 4 * math.sqrt(batch_size / 512)

    def rises(warmup: Warmup) -> bool:
        return warmup.own.rises(0.0, lr, float(epochs))

    of_the_row = {
        "warmup": Rule("table", f"from 0 to lr {lr:.3g} over {float(epochs):g} epochs", rises)
    }
    if n:
        of_the_row["worker_batch"] = Rule("table", f"n = {n}", lambda sizes: sizes == {n})
    return RULES | of_the_row


SHARED = ("data", "augmentation", "evaluation_crop", "model", "conv_init", "stride")
RULES = (
    goyal2017.COMMON_RULES
    | goyal2017.rules_for_section("code", *SHARED)
    | {
        "resize": Rule("code", "bilinear", lambda filters: filters == {"bilinear"}),
        "colour": Rule("code", "as stored", lambda colour: colour == "as stored"),
        "last_gamma": Rule("code", "1, as in torchvision", lambda gammas: gammas == {1.0}),
        "fc_init": Rule("code", "as PyTorch starts linear layers", lambda std: std != 0.01),
        "weight_decay": Rule(
            "code",
            "1e-4 of weights, none of biases",
            lambda decays: (
                decays == WeightDecayGroups(frozenset([1e-4]), frozenset([0.0]), untouched=0)
            ),
        ),
        "batchnorm_decay": Rule("code", "none", lambda decays: not any(decays)),
        # lsgd cannot scale an update after the momentum, so no run can follow this rule.
        "lars": Rule(
            "code",
            "lr and ratio behind the momentum, m = 0.9; ratios of at most 50, decayed gradients of "
            "-10 to 10",
            lambda _: False,
        ),
        "label_smoothing": Rule(
            "code",
            "0.1 over the other classes, which is 0.1001 over all",
            lambda share: abs(share - 0.1 * 1000 / 999) < 1e-5,
        ),
        "decay": decay_to_0(),
        "epochs": Rule("table", "90", lambda epochs: epochs.count == 90 and epochs.whole),
    }
)
