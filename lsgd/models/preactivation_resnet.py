"""The pre-activation ResNet-50, "v2" (He et al. 2016b), as dm-haiku's example for ImageNet has it.

BN and ReLU are before each convolution, and the shortcut of a stage's first block is after the
first of them. The strided convolution is the 3 x 3.
"""

from torch import Tensor, nn

from lsgd.rules.batchnorm import WorkerBatchNorm2d

EXPANSION = 4
"""The channels of a block's output over those of its 3 x 3 convolution."""


class PreActivationBottleneck(nn.Module):
    """A bottleneck block whose BN and ReLU are before its convolutions."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.bn1 = WorkerBatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn2 = WorkerBatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn3 = WorkerBatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        projection = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
        self.shortcut = nn.Sequential(projection) if channels != out else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the shortcut's output and that of the convolutions."""
        active = self.relu(self.bn1(x))
        identity = x if self.shortcut is None else self.shortcut(active)
        inner = self.conv2(self.relu(self.bn2(self.conv1(active))))
        out: Tensor = self.conv3(self.relu(self.bn3(inner))) + identity
        return out


class PreActivationResNet50(nn.Module):
    """A pre-activation ResNet-50, with BN and ReLU before its average pooling."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = 64, []
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            first = PreActivationBottleneck(channels, width, stride=stride)
            channels = EXPANSION * width
            others = [PreActivationBottleneck(channels, width, stride=1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *others))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn = WorkerBatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (images, classes) of images (images, channels, height, width)."""
        x = self.maxpool(self.conv1(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(self.relu(self.bn(x))).flatten(1))
        return logits
