"""Rules of Akiba et al. 2017, second-hand: from notes on the paper and a reproduction's code.

notes: a published page of notes, with the formulas, the lr, the minibatch and BN. code: the
reproduction crest-deep/dlframeworks at 94f590a and 7691c45. The paper itself could not be read. The
weight decay has no rule: the notes do not name it, and the code has none for this optimizer.
"""

import numpy as np

from lsgd.check.learning_rate import Warmup
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017
from lsgd.check.step import RMSpropWarmupSettings
from lsgd.recipe import Recipe

TITLE = "Akiba et al. 2017, second-hand"
WHO = "what is known of Akiba et al."
NOTE = "notes are a page about the paper, code is a reproduction; both are second-hand."
STAGES = ((0, 0.5), (40, 0.075), (70, 0.01), (85, 0.001))
"""The first epoch of each lr, and its share of 0.1 for 256 images."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Akiba et al. 2017 that are known."""
    full = 0.1 * recipe.batch_size / 256

    def in_stages(warmup: Warmup) -> bool:
        epochs = np.arange(len(warmup.own.curve)) // warmup.own.steps
        shares = np.select([epochs >= e for e, _ in STAGES[::-1]], [s for _, s in STAGES[::-1]])
        return bool(np.allclose(warmup.own.curve, full * shares, rtol=1e-9))

    return RULES | {
        "warmup": Rule(
            "notes, code",
            f"none; lr {full / 2:g}, and 0.075, 0.01, 0.001 of {full:g} from epochs 40, 70, 85",
            in_stages,
        )
    }


RULES = (
    goyal2017.COMMON_RULES
    | goyal2017.rules_for_section("notes", "data", "model", "epochs", "worker_batch")
    | {
        "rmsprop_warmup": Rule(
            "notes, code",
            "mu 0.9 and 0.99, eps 1e-8, lr 3e-4 of RMSprop, center 10 and period 5 epochs",
            lambda found: found == RMSpropWarmupSettings(0.9, 0.99, 1e-8, 3e-4, 10, 5),
        ),
        "running_average": Rule(
            "notes",
            "none: the statistics of the last step, the mean over workers",
            lambda m: m == 0,
        ),
        "gradient_compression": Rule("notes", "fp16 between processes", bool),
    }
)
