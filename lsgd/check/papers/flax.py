"""Rules of Flax' ImageNet example: google/flax at 18f8f311, examples/imagenet."""

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, stated
from lsgd.recipe import Recipe

TITLE = "Flax, ResNet-50"
WHO = "Flax' example"
NOTE = "code is examples/imagenet of google/flax."


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of Flax' example for the recipe's minibatch."""
    lr = recipe.batch_size / 2560
    text = f"from 0 to lr {lr:g} over 5 epochs, then half a cosine to 0"
    return RULES | {"lr_curve": stated.lr_curve("code", text, stated.by_cosine(lr, 5))}


RULES = {
    **goyal2017.rules_for_section("code", "data", "batchnorm_decay"),
    **stated.RESNET50,
    **stated.BATCHNORM,
    "last_gamma": stated.last_gamma("code", 0.0),
    "momentum": stated.sgd("code", equation=9, nesterov=True, m=0.9),
    "weight_decay": stated.weight_decay("code", 1e-4, biases=False),
    "label_smoothing": stated.label_smoothing("code", 0.0),
    "epochs": stated.epochs("code", 100),
}
