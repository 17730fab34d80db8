"""Rules of torchvision's weights V1 of ResNet-50, and of the first step from V1 to V2.

code: pytorch/vision at 017e9b9, references/classification, whose lr changes once per epoch; V2:
pytorch/vision, issue 3995, by which the first step is a minibatch of 1,024 with a cosine.
"""

import numpy as np
from numpy.typing import NDArray

from lsgd.check.learning_rate import Curve
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.check.step import WeightDecayGroups
from lsgd.recipe import Recipe

TITLE = "torchvision, ResNet-50"
WHO = "torchvision's reference"
NOTE = "code is references/classification of pytorch/vision, V2 its issue 3995."
WD = frozenset([1e-4])


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of torchvision's reference for 256 images, or of V2's for 1,024."""
    if recipe.batch_size == 1024:
        text = "lr of whole epochs: from 0.005 to 0.5 over 5 epochs, then half a cosine to 0"
        curve = stated.lr_curve("V2", text, _per_epoch)
    elif recipe.batch_size == 256:
        text = "lr 0.1, a tenth at 30 and 60"
        curve = stated.lr_curve("code", text, stated.by_drops(0.1, 0, 30, 60))
    else:
        curve = stated.no_row("256 and 1,024")
    return RULES | {"lr_curve": curve}


def _per_epoch(steps: NDArray[np.int64], per_epoch: int, total: int) -> Curve:
    epoch, last = steps // per_epoch, total // per_epoch
    return stated.by_cosine(0.5, 5, start=0.005)(epoch, 1, last)


RULES = (
    goyal2017.COMMON_RULES
    | goyal2017.rules_for_section("code", "data", "augmentation", "evaluation_crop", "conv_init")
    | stated.RESNET50
    | stated.STRIDE
    | stated.BATCHNORM
    | {
        "resize": Rule("code", "bilinear", lambda filters: filters == {"bilinear"}),
        "colour": Rule("code", "as stored", lambda colour: colour == "as stored"),
        "fc_init": Rule("code", "as PyTorch starts linear layers", lambda std: std != 0.01),
        "last_gamma": stated.last_gamma("code", 1.0),
        "momentum": stated.sgd("code", equation=9, nesterov=False, m=0.9),
        "weight_decay": Rule(
            "code", "1e-4", lambda found: found == WeightDecayGroups(WD, WD, untouched=0)
        ),
        "batchnorm_decay": Rule("code", "1e-4, as of all tensors", lambda decays: decays == WD),
        "label_smoothing": stated.label_smoothing("code", 0.0),
        "epochs": stated.epochs("code", 90),
    }
)
