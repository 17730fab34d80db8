"""A small convolutional network of plain PyTorch layers."""

from torch import Tensor, nn

from example_parts.layers import conv_block


class TinyNet(nn.Module):
    """Two convolutions with BN, dropout and a linear layer."""

    def __init__(
        self, classes: int, *, channels: int = 3, width: int = 8, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(channels, width), nn.MaxPool2d(2), conv_block(width, 2 * width)
        )
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (images, classes) of images (images, channels, height, width)."""
        pooled = self.features(images).mean((2, 3))
        logits: Tensor = self.fc(self.dropout(pooled))
        return logits
