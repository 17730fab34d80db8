"""Rules of torchvision's weights V1 of ResNet-50, of the first step to V2, and of V2.

code: pytorch/vision at 017e9b9, references/classification, whose lr changes once per epoch; V2:
pytorch/vision, issue 3995, by which the first step is a minibatch of 1,024 with a cosine. Repeated
augmentation, its last step, is left out.
"""

import numpy as np
from numpy.typing import NDArray

from lsgd.check.learning_rate import Curve
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "torchvision, ResNet-50"
WHO = "torchvision's reference"
NOTE = "code is references/classification of pytorch/vision, V2 its issue 3995."
V2_EPOCHS = 600


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return torchvision's rules for weights V1, for V2, or for the first step from V1 to V2.

    V1 has 256 images per step and the others 1,024; V2 has 600 epochs. Steps between have no rules
    of their own: by its epochs, a recipe of one is compared with the first step or with V2.
    """
    if recipe.batch_size == 256:
        text = "lr 0.1, a tenth at 30 and 60"
        drops = stated.by_drops(0.1, 0, 30, 60)
        return RULES | {"lr_curve": stated.lr_curve("code", text, drops)}
    if recipe.batch_size != 1024:
        return RULES | {"lr_curve": stated.no_row([256, 1024])}
    text = "lr of whole epochs: from 0.005 to 0.5 over 5 epochs, then half a cosine to 0"
    own = V2 if recipe.epochs == V2_EPOCHS else {}
    return RULES | own | {"lr_curve": stated.lr_curve("V2", text, _per_epoch)}


def _per_epoch(epochs: NDArray[np.float64], last: float) -> Curve:
    return stated.by_cosine(0.5, 5, start=0.005)(np.floor(epochs), last)


RULES = {
    **goyal2017.rules_for_section("code", "data", "augmentation", "evaluation_crop", "conv_init"),
    **stated.RESNET50_V15,
    **stated.BATCHNORM,
    **stated.FC_OF_PYTORCH,
    "resize": stated.resize("code", "bilinear"),
    "colour": stated.colour_as_stored("code"),
    "last_gamma": stated.last_gamma("code", 1.0),
    "momentum": stated.sgd("code", equation=9, nesterov=False, m=0.9),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=True),
    "batchnorm_decay": stated.batchnorm_decay("code", 1e-4),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "epochs": stated.epochs("code", 90),
}

MORE = ("trivial_augment", "erasing 0.1")
V2 = {
    "augmentation": stated.crops("V2", (0.08, 1), (3 / 4, 4 / 3), more=MORE),
    "mixing": Rule.equals("V2", "mixup of 0.2 or CutMix of 1", (0.2, 1.0)),
    "image_sizes": Rule.equals("V2", "176 in all epochs", [(0, 176)]),
    "evaluation_crop": stated.evaluation_crop("V2", 232),
    "label_smoothing": stated.label_smoothing("V2", 0.1),
    "weight_decay": stated.weight_decay("V2", 2e-5, biases=True),
    "batchnorm_decay": stated.batchnorm_decay("V2", 0.0),
    "averaging": stated.moving_average("V2", half_life=20296, every=32),
    "epochs": stated.epochs("V2", V2_EPOCHS),
}
