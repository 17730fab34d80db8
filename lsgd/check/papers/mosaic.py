"""Rules of MosaicML's ResNet-50: resnet_imagenet of mosaicml/examples at daddaef, mild.

Its optimizer, initialisation and image sizes are those of mosaicml/composer at 6405188.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import Momentum, WeightDecayGroups
from lsgd.recipe import Recipe

TITLE = "MosaicML's ResNet-50, mild"
WHO = "MosaicML"
NOTE = "mild is the recipe of 36 epochs, composer is the library of MosaicML's code."
EPOCHS = 36


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of MosaicML's mild recipe."""
    return RULES


SHARED = ("data", "augmentation", "model", "stride")
COMMON = {
    name: rule
    for name, rule in goyal2017.COMMON_RULES.items()
    if name not in ("other_gammas", "averaging")
}
RULES = (
    COMMON
    | goyal2017.rules_for_section("mild", *SHARED)
    | {
        "resize": Rule("mild", "bilinear", lambda filters: filters == {"bilinear"}),
        "colour": Rule("mild", "as stored", lambda colour: colour == "as stored"),
        "evaluation_crop": Rule("mild", "short side 232, centre 224", lambda is_256: not is_256),
        "image_sizes": Rule(
            "composer", "of 176 pixels, resized by step to half of them at first", lambda _: False
        ),
        "blurpool": Rule(
            "mild", "of 6 convolutions and of max-pooling", lambda counts: counts == (6, 1)
        ),
        "conv_init": Rule("composer", "He: N(0, 2 / fan in)", lambda side: side == "in"),
        "last_gamma": Rule("composer", "uniform in (0, 1)", lambda gammas: len(gammas) > 100),
        "other_gammas": Rule("composer", "uniform in (0, 1)", lambda are_1: not are_1),
        "weight_decay": Rule(
            "mild",
            "5e-4 of all parameters, decoupled from the gradient",
            lambda decays: (
                decays == WeightDecayGroups(frozenset([5e-4]), frozenset([5e-4]), 0, True)
            ),
        ),
        "batchnorm_decay": Rule("mild", "5e-4", lambda decays: decays == {5e-4}),
        "momentum": Rule(
            "mild",
            "equation (9), not Nesterov, m = 0.875",
            lambda momentum: momentum == Momentum(9, nesterov=False, m=0.875, clip_norm=None),
        ),
        "loss": Rule(
            "mild", "binary cross-entropy, sum over classes", lambda loss: loss == ("bce", "sum")
        ),
        "label_smoothing": Rule("mild", "0.08", lambda share: share == 0.08),
        "averaging": Rule("mild", "exponential", lambda name: name == "ema"),
        "precision": Rule("mild", "float16", lambda names: names == {"float16", "float32"}),
        "lr_curve": stated.lr_curve(
            "mild",
            "from 0 to 2.048 over 8 epochs, then half a cosine to 0 at epoch 36",
            stated.by_cosine(2.048, 8, until=EPOCHS),
        ),
        "phases": Rule("mild", "8 x 256 in all epochs", lambda phases: phases == [(0, 8, 256)]),
        "epochs": Rule("mild", f"{EPOCHS}", lambda epochs: epochs.count == EPOCHS and epochs.whole),
    }
)
