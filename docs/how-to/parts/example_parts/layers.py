"""A block of layers, which the network imports, so that it belongs to the network's source."""

from torch import nn


def conv_block(channels: int, width: int) -> nn.Sequential:
    """Return a convolution of 3 x 3 with BN and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )
