"""Rules of Nado et al. 2021 for LARS with 32,768 images, from Google's MLPerf 0.7 code in JAX.

The code is read at c664061. The paper's other optimizers have no rules, since their settings could
not be read.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "Nado et al. 2021, LARS"
WHO = "Google's code for MLPerf 0.7"
NOTE = "code is that of MLPerf Training 0.7 in JAX, paper is Nado et al. 2021."
STEPS = 2512


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Nado et al. 2021 for LARS with a minibatch of 32,768 images."""
    return RULES


RULES = goyal2017.rules_for_section("paper", "data") | {
    "model": Rule("paper", "ResNet-50", bool),
    "last_gamma": stated.last_gamma("code", 0.0),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=False),
    "batchnorm_decay": stated.batchnorm_decay("code", 0.0),
    "lars": stated.lars("code", equation=10, m=0.929, trust=0.001, eps=0.0),
    "label_smoothing": stated.label_smoothing("code", 0.1),
    "running_average": Rule.equals("code", "momentum 0.9", 0.9),
    "precision": stated.precision("code", "bfloat16"),
    "warmup": stated.warmup("code", "from 0 to lr 29 over 18 epochs", 29, 18),
    "decay": Rule(
        "code",
        f"by power 2 to lr 0.0001 at step {STEPS}",
        lambda decay: (
            decay is not None
            and abs(decay.end - 1e-4) < 1e-7
            and abs(decay.end_step - STEPS) < 1e-3
        ),
    ),
    "epochs": stated.steps("paper", STEPS),
    "worker_batch": stated.worker_batch("code", 64),
}
