"""The network of a recipe, and the form in which it takes images."""

import torch
from torch import nn

from lsgd.models import make_model
from lsgd.recipe import Recipe

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""Of parameters and gradients; bfloat16 is for the forward pass alone, by autocast."""


def make_network(recipe: Recipe) -> nn.Module:
    """As a run of the recipe begins, in its precision and layout; the same on every process."""
    model = make_model(
        recipe.model.name,
        classes=recipe.data.classes,
        channels=recipe.data.channels,
        last_gamma=recipe.model.last_gamma,
        seed=recipe.seed,
    )
    return model.to(DTYPES[recipe.precision], memory_format=layout(recipe))  # type: ignore[call-overload,no-any-return]


def layout(recipe: Recipe) -> torch.memory_format:
    """How images and convolutions lie in memory."""
    return torch.channels_last if recipe.channels_last else torch.contiguous_format
