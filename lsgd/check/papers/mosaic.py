"""Rules of MosaicML's ResNet-50: resnet_imagenet of mosaicml/examples at daddaef, mild.

Its optimizer, initialisation and image sizes are those of mosaicml/composer at 6405188.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "MosaicML's ResNet-50, mild"
WHO = "MosaicML"
NOTE = "mild is the recipe of 36 epochs, composer is the library of MosaicML's code."
EPOCHS = 36


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of MosaicML's mild recipe."""
    return RULES


SHARED = ("data", "augmentation", "model", "stride")
RULES = goyal2017.rules_for_section("mild", *SHARED) | {
    "resize": stated.resize("mild", "bilinear"),
    "colour": stated.colour_as_stored("mild"),
    "evaluation_crop": stated.evaluation_crop("mild", 232),
    "image_sizes": Rule.unmet(
        "composer", "of 176 pixels, resized by step to half of them at first"
    ),
    "blurpool": Rule.equals("mild", "of 6 convolutions and of max-pooling", (6, 1)),
    "conv_init": Rule.equals("composer", "He: N(0, 2 / fan in)", "in"),
    "last_gamma": Rule("composer", "uniform in (0, 1)", lambda gammas: len(gammas) > 100),
    "other_gammas": Rule("composer", "uniform in (0, 1)", lambda are_1: not are_1),
    "weight_decay": stated.weight_decay("mild", 5e-4, biases=True, decoupled=True),
    "batchnorm_decay": stated.batchnorm_decay("mild", 5e-4),
    "momentum": stated.sgd("mild", equation=9, nesterov=False, m=0.875),
    "loss": Rule.equals("mild", "binary cross-entropy, sum over classes", ("bce", "sum")),
    "label_smoothing": stated.label_smoothing("mild", 0.08),
    "averaging": stated.moving_average("mild", half_life=100, every=20),
    "precision": stated.precision("mild", "float16"),
    "lr_curve": stated.lr_curve(
        "mild",
        "from 0 to 2.048 over 8 epochs, then half a cosine to 0 at epoch 36",
        stated.by_cosine(2.048, 8, until=EPOCHS),
    ),
    "phases": Rule.equals("mild", "8 x 256 in all epochs", [(0, 8, 256)]),
    "epochs": stated.epochs("mild", EPOCHS),
}
