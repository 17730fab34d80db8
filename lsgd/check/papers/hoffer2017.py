"""Rules of Hoffer, Hubara and Soudry 2017, from their code: eladhoffer/bigBatch at 0c69f28.

A large minibatch is trained like a small one, which is the reference here: its lr grows with the
root, BN statistics are over no more images than the small one has, and there are as many steps. A
recipe does not have the steps of the small one, so no rule checks them; data and network are free.
"""

import math

from lsgd.check.learning_rate import Warmup
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import Momentum
from lsgd.recipe import Recipe

TITLE = "Hoffer, Hubara, Soudry 2017"
WHO = "the code of Hoffer et al."
NOTE = "code is github.com/eladhoffer/bigBatch, which trained their networks."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Hoffer et al. 2017, by the name of the observation that they are for.

    The recipe's reference batch is the small minibatch, like which the large one is trained.
    """
    small = recipe.schedule.reference_batch
    return RULES | {
        "worker_batch": Rule(
            "code", f"BN over {small:g} images or fewer", lambda sizes: max(sizes) <= small
        )
    }


def _starts_full(warmup: Warmup) -> bool:
    return bool(warmup.own.lrs[0] == warmup.own.lrs.max())


RULES = goyal2017.COMMON_RULES | {
    "conv_init": Rule.equals("code", "He: N(0, 2 / fan out)", "out"),
    "last_gamma": stated.last_gamma("code", 1.0),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
    "batchnorm_decay": stated.batchnorm_decay("code", 1e-4),
    "momentum": Rule.equals(
        "code",
        "equation (9), m = 0.9, of gradients shortened to norm 5",
        Momentum(9, nesterov=False, m=0.9, clip_norm=5.0),
    ),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "scaling": Rule("code", "by the root", lambda ratio: math.isclose(ratio, math.sqrt(2))),
    "warmup": Rule("code", "none", _starts_full),
}
