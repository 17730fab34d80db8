"""The paper's own step, which a plan may start from, and how far the model is off there."""

from dataclasses import replace

from lsgd import config
from lsgd.plan.gradients import pieces
from lsgd.plan.hardware import GOYAL, PAPER
from lsgd.plan.step import Machine, Measured
from lsgd.recipe import Recipe

HOURS = 29.0
"""Hours that 90 epochs with kn = 256 take on one server of 8 GPUs."""
BACKWARD = 0.120
"""Seconds of a backward pass over 32 images on a P100 (section 4.3)."""

HOW_FAR_OFF = (
    "How far the model is off here: 0.5% of the paper's hour on 256 GPUs, with the two calibrated "
    "constants, which were fitted to other numbers of the paper, and 9.6% without them "
    "(results/2026-11-22-plan-calibration in a checkout of lsgd)."
)


def fits(recipe: Recipe) -> bool:
    """Whether the paper's step is one of this recipe's model: ResNet-50 at 224 in float32."""
    known = (recipe.model.name, recipe.data.image_size, recipe.precision)
    return known == ("resnet50", 224, "float32")


def measured() -> Measured:
    """The paper's step on one server of 8, from the hours that 90 epochs take there."""
    recipe = _recipe("bs256")
    seconds = HOURS * 3600 / recipe.total_steps
    return Measured(
        seconds,
        images=recipe.worker_batch,
        gpus=8,
        backward_share=BACKWARD / seconds,
        data_wait=0.0,
        source=f"{GOYAL}: {HOURS:g} h for {recipe.epochs} epochs with kn = 256, over "
        f"{recipe.total_steps} steps; with it all that a server needs, its own sums, its loading "
        "and perhaps its evaluations",
        backward_source=f"{GOYAL}, section 4.3: {1000 * BACKWARD:g} ms",
    )


def describes(planned: Machine, recipe: Recipe) -> bool:
    """Whether a plan is of the paper's own machine and 90 epochs, for which HOW_FAR_OFF holds."""
    own = _recipe("bs8k")
    resized = replace(recipe, workers=own.workers)
    return planned == Machine(PAPER, 8, tuple(pieces(own, fused=False)), measured()) and (
        (resized.batch_size, resized.total_steps) == (own.batch_size, own.total_steps)
    )


def _recipe(name: str) -> Recipe:
    return config.load_recipe([f"+recipe={name}"])
