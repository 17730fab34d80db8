"""You, Gitman and Ginsburg 2017, on LARS: algorithm 1, and the table of ResNet-50.

How weights start, over how many images BN goes and how images are resized, it does not say.
"""

from lsgd.check.finding import Rule
from lsgd.check.papers import sound
from lsgd.check.rate import Parabola, Warmup
from lsgd.check.step import Decays, Lars
from lsgd.recipe import Recipe

TITLE = "You, Gitman, Ginsburg 2017"
WHO = "the paper of LARS"
NOTE = "alg. 1 is the algorithm of the paper of LARS, table its rows of ResNet-50, by minibatch."
TABLE = {256: (4, 0), 1024: (9, 5), 8192: (30, 5), 16384: (33, 12), 32768: (40, 12)}
"""The lr and the epochs of warmup, by minibatch."""
ALL = frozenset(["weights", "biases", "norms"])
WD = frozenset([5e-4])


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Those of the algorithm, and those of the minibatch's row in the table."""
    return RULES | {"warmup": _warmup(recipe.batch_size), "decay": decay_to_0()}


def _warmup(batch_size: int) -> Rule:
    row = TABLE.get(batch_size)
    if row is None:
        known = ", ".join(f"{each:,}" for each in TABLE)
        return Rule("table", f"there are rows for {known} images", lambda _: False)
    lr, epochs = row

    def holds(warmup: Warmup) -> bool:
        return warmup.own.rises(0.0, lr, epochs)

    over = f"to lr {lr} over {epochs} epochs" if epochs else f"none, at lr {lr} from the first step"
    return Rule("table", over, holds)


def decay_to_0() -> Rule:
    """By a polynomial of power 2 that ends where the run does."""

    def holds(decay: Parabola | None) -> bool:
        if decay is None:
            return False
        return abs(decay.end) < 1e-7 and abs(decay.over - decay.steps) < 1e-3

    return Rule("alg. 1", "by power 2 to 0 at the end of the run", holds)


RULES = (
    sound.RULES
    | sound.as_goyal("table", "data")
    | {
        "augmentation": Rule(
            "table",
            "crops of varied area and aspect, and flips",
            lambda windows: windows is not None,
        ),
        "model": Rule("table", "ResNet-50", bool),
        "weight_decay": Rule(
            "paper", "5e-4, of all tensors", lambda decays: decays == Decays(WD, WD, untouched=0)
        ),
        "batchnorm_decay": Rule(
            "alg. 1", "5e-4: no tensor is excluded", lambda decays: decays == WD
        ),
        "lars": Rule(
            "alg. 1",
            "as equation (10), m = 0.9, trust 0.001, no eps; no tensor is excluded",
            lambda lars: lars == Lars(10, False, 0.9, 0.001, 0.0, ALL),
        ),
        "epochs": Rule("table", "100", lambda epochs: epochs.count == 100 and epochs.whole),
    }
)
