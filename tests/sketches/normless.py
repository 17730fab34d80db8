"""A network without any layer that normalises, so that its workers carry nothing along."""

from torch import nn

from lsgd.models import initialise
from lsgd.workloads.images import Images


class NormlessImages(Images):
    """Images under one convolution and a linear layer."""

    def network(self) -> nn.Module:
        """The network, drawn from the seed."""
        data = self.recipe.data
        convolution = nn.Conv2d(data.channels, 4, 3, stride=2, padding=1)
        side = (data.image_size + 1) // 2
        linear = nn.Linear(4 * side**2, data.classes)
        model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), linear)
        initialise(model, last_gamma=0, seed=self.recipe.seed)
        return model.to(self.dtype)
