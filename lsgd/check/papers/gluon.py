"""Rules of gluon-cv's weights v1b of ResNet-50: dmlc/gluon-cv at 56777561, and its training log.

The header of the log shows smoothed labels and the decay of weights alone; the script does not.
"""

from lsgd.check.images import FB_RESNET_COLOURS
from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "gluon-cv, ResNet-50 v1b"
WHO = "gluon-cv's run"
NOTE = "log is that of the weights v1b in dmlc/web-data, code is gluon-cv's."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of gluon-cv's run of ResNet-50 v1b."""
    return RULES


RULES = {
    **goyal2017.rules_for_section("code", "data"),
    **stated.RESNET50_V15,
    "colour": Rule.equals(
        "code", "jitter by 0.6 to 1.4, lighting of standard deviation 0.1", FB_RESNET_COLOURS
    ),
    "last_gamma": stated.last_gamma("log", 0.0),
    "momentum": stated.sgd("code", equation=9, nesterov=True, m=0.9),
    "weight_decay": stated.weight_decay("log", 1e-4, biases=False),
    "batchnorm_decay": stated.batchnorm_decay("log", 0.0),
    "label_smoothing": stated.label_smoothing("log", 0.1),
    "precision": stated.precision("log", "float16"),
    "lr_curve": stated.lr_curve(
        "log", "from 0 to lr 0.4 over 5 epochs, then half a cosine to 0", stated.by_cosine(0.4, 5)
    ),
    "epochs": stated.epochs("log", 120),
    "worker_batch": stated.worker_batch("log", 128),
}
