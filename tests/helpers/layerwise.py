"""Layer-wise optimizers, LARS and LAMB, over one tensor."""

from dataclasses import asdict

import torch
from torch import Tensor, nn

from lsgd.recipe import Optim
from lsgd.rules import optim
from lsgd.rules.optimizers.lamb import ADAPTED_DECAY


def over(weight: Tensor, settings: Optim, adapted: bool = True) -> torch.optim.Optimizer:
    """The optimizer over one tensor, which is scaled and decays, or neither."""
    decay = {ADAPTED_DECAY: settings.weight_decay} if adapted else {}
    groups = [{"params": [weight], "weight_decay": 0.0, **decay}]
    shared = optim.shared_settings(asdict(settings))
    return optim.optimizer_over_groups(groups, norm=lambda: weight.grad.norm(), **shared)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def step(optimizer: torch.optim.Optimizer, weight: Tensor, gradient: Tensor, lr: float) -> None:
    weight.grad = gradient.clone()
    optim.set_lr(optimizer, lr)
    optimizer.step()
