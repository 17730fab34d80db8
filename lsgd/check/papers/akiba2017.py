"""Rules of Akiba et al. 2017, second-hand: from notes on the paper and a reproduction's code.

notes: a published page of notes, with the formulas, the lr, the minibatch and BN. code: the
reproduction crest-deep/dlframeworks at 94f590a and 7691c45. The paper itself could not be read. The
weight decay has no rule: the notes do not name it, and the code has none for this optimizer.
"""

import numpy as np
from numpy.typing import NDArray

from lsgd.check.learning_rate import Curve
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "Akiba et al. 2017, second-hand"
WHO = "what is known of Akiba et al."
NOTE = "notes are a page about the paper, code is a reproduction; both are second-hand."
STAGES = ((0, 0.5), (40, 0.075), (70, 0.01), (85, 0.001))
"""The first epoch of each lr, and its share of 0.1 for 256 images."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Akiba et al. 2017 that are known."""
    full = 0.1 * recipe.batch_size / 256
    text = f"lr {full / 2:g}, and 0.075, 0.01, 0.001 of {full:g} from epochs 40, 70, 85"

    def in_stages(epochs: NDArray[np.float64], _: float) -> Curve:
        firsts, shares = np.array(STAGES).T
        lrs: Curve = full * shares[np.searchsorted(firsts, epochs, side="right") - 1]
        return lrs

    return RULES | {"lr_curve": stated.lr_curve("notes, code", text, in_stages)}


RULES = goyal2017.rules_for_section("notes", "data", "model", "epochs", "worker_batch") | {
    "rmsprop_warmup": Rule.equals(
        "notes, code",
        "mu 0.9 and 0.99, eps 1e-8, lr 3e-4 of RMSprop, center 10 and period 5 epochs",
        (0.9, 0.99, 1e-8, 3e-4, 10, 5),
    ),
    "running_average": Rule.equals(
        "notes", "none: the statistics of the last step, the mean over workers", 0
    ),
    "gradient_compression": Rule("notes", "fp16 between processes", bool),
}
