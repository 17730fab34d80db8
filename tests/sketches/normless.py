"""A network without any layer that normalises, so that its workers carry nothing along."""

import torch
from torch import nn

from lsgd.workloads.images import Images


class NormlessImages(Images):
    """Images under one convolution and a linear layer."""

    def network(self) -> nn.Module:
        """The network, drawn from the seed."""
        data = self.recipe.data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            convolution = nn.Conv2d(data.channels, 4, 3, stride=2, padding=1)
            side = (data.image_size + 1) // 2
            linear = nn.Linear(4 * side**2, data.classes)
        return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), linear).to(self.dtype)
