"""Networks as plain modules, and how a run starts with one: weights, precision, layout."""

from functools import partial

import torch
from torch import nn

from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""The type of parameters and gradients; bfloat16 is for the forward pass alone, by autocast."""


def make_network(recipe: Recipe) -> nn.Module:
    """The network that a run of the recipe starts with; the same on every process.

    It is in the recipe's precision and memory layout, on the CPU.
    """
    model = make_model(
        recipe.model.name,
        classes=recipe.data.classes,
        channels=recipe.data.channels,
        last_gamma=recipe.model.last_gamma,
        seed=recipe.seed,
    )
    return model.to(DTYPES[recipe.precision], memory_format=layout(recipe))  # type: ignore[call-overload,no-any-return]


def layout(recipe: Recipe) -> torch.memory_format:
    """The memory format of images and convolutions."""
    return torch.channels_last if recipe.channels_last else torch.contiguous_format


def make_model(
    name: str, *, classes: int, channels: int, last_gamma: float, seed: int
) -> nn.Module:
    """The network `name`, initialised by the seed alone: the same weights on every process."""
    # Imported here, since torchvision takes a second and only what makes a network needs it.
    from lsgd.models.small import SmallResNet
    from lsgd.vision import models

    norm = WorkerBatchNorm2d
    makers = {
        "resnet50": partial(models.resnet50, num_classes=classes, norm_layer=norm),
        "resnet101": partial(models.resnet101, num_classes=classes, norm_layer=norm),
        "resnet20": partial(SmallResNet, classes, channels=channels, blocks=3, width=16),
        "small_resnet": partial(SmallResNet, classes, channels=channels, blocks=1, width=8),
    }
    model: nn.Module = makers[name]()
    initialise(model, last_gamma=last_gamma, seed=seed)
    return model


def initialise(model: nn.Module, *, last_gamma: float, seed: int) -> None:
    """Start the weights as in Goyal et al. 2017, section 5.1.

    He's initialisation (fan out) for convolutions, N(0, 0.01²) for the fully connected layer with
    bias 0, gamma 1 and beta 0, but `last_gamma` for the last BN of every residual block.
    """
    from lsgd.vision import models

    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        match module:
            case nn.Conv2d():
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            case nn.Linear():
                nn.init.normal_(module.weight, std=0.01, generator=generator)
                nn.init.zeros_(module.bias)
            case nn.BatchNorm2d():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
    for module in model.modules():
        match module:
            case models.resnet.Bottleneck():
                nn.init.constant_(module.bn3.weight, last_gamma)
            case models.resnet.BasicBlock():
                nn.init.constant_(module.bn2.weight, last_gamma)
