"""Residual networks for small images: ResNet-20 (He et al. 2016, section 4.2) and a tiny one."""

from torch import Tensor, nn

from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.vision import models


class SmallResNet(nn.Module):
    """A ResNet of a 3 x 3 stem and three stages of basic blocks, each starting with a projection.

    `blocks=3, width=16` is ResNet-20; `blocks=1, width=8` has 19,890 parameters for 1 channel and
    10 classes, and trains on a laptop.
    """

    def __init__(self, classes: int, *, channels: int, blocks: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = WorkerBatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(width, width, blocks, stride=1)
        self.layer2 = _stage(width, 2 * width, blocks, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, blocks, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (images, classes) of images (images, channels, height, width)."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _stage(channels: int, width: int, blocks: int, *, stride: int) -> nn.Sequential:
    projection = nn.Sequential(
        nn.Conv2d(channels, width, 1, stride=stride, bias=False), WorkerBatchNorm2d(width)
    )
    block = models.resnet.BasicBlock
    first = block(channels, width, stride, projection, norm_layer=WorkerBatchNorm2d)
    return nn.Sequential(
        first, *(block(width, width, norm_layer=WorkerBatchNorm2d) for _ in range(blocks - 1))
    )
