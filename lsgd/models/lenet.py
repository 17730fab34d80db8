"""LeNet-5 (LeCun et al. 1998), with today's ReLU and max pooling."""

from torch import Tensor, nn


class LeNet5(nn.Module):
    """The LeNet-5 network: two 5 x 5 convolutions and three linear layers, for 28 x 28 images.

    It has no BN. For 1 channel and 10 classes it has 61,706 parameters, with 120 units in the first
    linear layer.
    """

    def __init__(self, classes: int, *, channels: int, hidden: int = 120) -> None:
        super().__init__()
        # The padding makes 32 x 32 of 28 x 28 images, the input size of 1998.
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.fc1 = nn.Linear(16 * 5 * 5, hidden)
        self.fc2 = nn.Linear(hidden, 84)
        self.fc = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (images, classes) of images (images, channels, 28, 28)."""
        x = self.pool(self.relu(self.conv1(images)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.fc2(self.relu(self.fc1(x.flatten(1)))))
        logits: Tensor = self.fc(x)
        return logits
