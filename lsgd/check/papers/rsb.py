"""Rules of A3 of Wightman et al. 2021, ResNet strikes back, as mmpretrain has it.

code: resnet50_8xb256-rsb-a3-100e_in1k.py of open-mmlab/mmpretrain at 14ced91, with its bases. The
paper could not be read.
"""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "ResNet strikes back, A3, in mmpretrain"
WHO = "mmpretrain"
NOTE = "code is the configuration of mmpretrain."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of mmpretrain's A3."""
    return RULES


RULES = {
    **goyal2017.rules_for_section("code", "data", "conv_init", "batchnorm_decay"),
    **stated.RESNET50_V15,
    **stated.BATCHNORM,
    # Its magnitude is drawn anew for each operation, which torchvision's is not.
    "augmentation": Rule.unmet("code", "area 8 to 100 %, flip 0.5, RandAugment of 2 and 6 ± 0.5"),
    "mixing": Rule.equals("code", "mixup of 0.1 or CutMix of 1", (0.1, 1.0)),
    "resize": stated.resize("code", "bicubic"),
    "colour": stated.colour_as_stored("code"),
    "evaluation_crop": stated.evaluation_crop("code", 236),
    "fc_init": Rule("code", "not N(0, 0.01²)", lambda std: std != 0.01),
    "last_gamma": stated.last_gamma("code", 1.0),
    "loss": Rule.equals("code", "binary cross-entropy, sum over classes", ("bce", "sum")),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "weight_decay": stated.weight_decay("code", 0.02, biases=False, decoupled=True),
    "lamb": stated.lamb("code", "weights", bias_correction=True),
    "clip_norm": Rule.equals("code", "to norm 1, as timm's LAMB does", 1),
    "lr_curve": stated.lr_curve(
        "code",
        "from 8e-7 to 0.008 over 5 epochs, then half a cosine to 1e-6",
        stated.by_cosine(0.008, 5, start=8e-7, end=1e-6),
    ),
    "epochs": stated.epochs("code", 100),
    "worker_batch": Rule.equals("code", "BN over all 2,048 images", {2048}),
}
