"""Rules of You, Gitman and Ginsburg 2017 on LARS: algorithm 1, and the table for ResNet-50.

The paper does not state initialisation, BN group size or resizing.
"""

from lsgd.check.learning_rate import Parabola
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import Lars
from lsgd.recipe import Recipe

TITLE = "You, Gitman, Ginsburg 2017"
WHO = "the paper of LARS"
NOTE = "alg. 1 is the algorithm of the paper of LARS, table its rows of ResNet-50, by minibatch."
TABLE = {256: (4, 0), 1024: (9, 5), 8192: (30, 5), 16384: (33, 12), 32768: (40, 12)}
"""The lr and the warmup epochs, by minibatch."""
ALL = frozenset(["weights", "biases", "norms"])


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the paper of LARS and of its table's row for the recipe's minibatch."""
    return RULES | {"warmup": _warmup(recipe.batch_size)}


def _warmup(batch_size: int) -> Rule:
    row = TABLE.get(batch_size)
    if row is None:
        return stated.no_row(TABLE)
    lr, epochs = row
    over = f"to lr {lr} over {epochs} epochs" if epochs else f"none, at lr {lr} from the first step"
    return stated.warmup("table", over, lr, epochs)


def _ends_at_0(decay: Parabola | None) -> bool:
    """Return whether a decay of power 2 ends at 0, with the run."""
    if decay is None:
        return False
    return abs(decay.end) < 1e-7 and abs(decay.end_step - decay.steps) < 1e-3


RULES = goyal2017.rules_for_section("table", "data") | {
    "augmentation": Rule(
        "table", "crops of varied area and aspect, and flips", lambda windows: windows is not None
    ),
    "model": Rule("table", "ResNet-50", bool),
    "weight_decay": stated.weight_decay("paper", 5e-4, biases=True),
    "batchnorm_decay": stated.batchnorm_decay("alg. 1", 5e-4),
    "lars": Rule.equals(
        "alg. 1",
        "as equation (10), m = 0.9, trust 0.001, no eps; no tensor is excluded",
        Lars(10, False, 0.9, 0.001, 0.0, ALL),
    ),
    "decay": Rule("alg. 1", "by power 2 to 0 at the end of the run", _ends_at_0),
    "epochs": stated.epochs("table", 100),
}
