"""Nado et al. 2021 at 32,768 images: LARS by Google's code for MLPerf 0.7, in JAX, at c664061.

Their other optimizers are not asked about, since their settings could not be read.
"""

from lsgd.check.finding import Rule
from lsgd.check.papers import sound
from lsgd.check.step import Decays, Lars
from lsgd.recipe import Recipe

TITLE = "Nado et al. 2021, LARS"
WHO = "Google's code for MLPerf 0.7"
NOTE = "code is that of MLPerf Training 0.7 in JAX, paper is Nado et al. 2021."
STEPS = 2512


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Those of the one minibatch that the claim is about."""
    return RULES


RULES = (
    sound.RULES
    | sound.as_goyal("paper", "data")
    | {
        "model": Rule("paper", "ResNet-50", bool),
        "last_gamma": Rule("code", "0", lambda gammas: gammas == {0.0}),
        "weight_decay": Rule(
            "code",
            "1e-4 of weights, none of biases",
            lambda decays: decays == Decays(frozenset([1e-4]), frozenset([0.0]), untouched=0),
        ),
        "batchnorm_decay": Rule("code", "none", lambda decays: not any(decays)),
        "lars": Rule(
            "code",
            "as equation (10), m = 0.929, trust 0.001, eps 0, of weights",
            lambda lars: lars == Lars(10, False, 0.929, 0.001, 0.0, frozenset(["weights"])),
        ),
        "label_smoothing": Rule("code", "0.1", lambda share: share == 0.1),
        "running_average": Rule("code", "momentum 0.9", lambda m: m == 0.9),
        "precision": Rule("code", "bfloat16", lambda names: names == {"bfloat16", "float32"}),
        "warmup": Rule(
            "code", "from 0 to lr 29 over 18 epochs", lambda warmup: warmup.own.rises(0.0, 29, 18)
        ),
        "decay": Rule(
            "code",
            f"by power 2 to lr 0.0001 at step {STEPS}",
            lambda decay: (
                decay is not None
                and abs(decay.end - 1e-4) < 1e-7
                and abs(decay.over - STEPS) < 1e-3
            ),
        ),
        "epochs": Rule("paper", f"{STEPS} steps", lambda epochs: epochs.steps == STEPS),
        "worker_batch": Rule("code", "BN over 64 images", lambda sizes: sizes == {64}),
    }
)
