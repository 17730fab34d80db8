"""Blurred strides: antialiased convolutions and max-pooling (Zhang 2019), as FFCV and Mosaic do."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIN_CHANNELS = 16
"""The fewest input channels of a convolution that is blurred; it excludes a first layer."""


def blur_kernel() -> Tensor:
    """Return the kernel [1, 2, 1] x [1, 2, 1] / 16, shape (1, 1, 3, 3)."""
    line = torch.tensor([0.25, 0.5, 0.25])
    return torch.outer(line, line)[None, None]


def blur(images: Tensor, kernel: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Blur each channel by a kernel with zeros around the image, with a stride."""
    channels = images.shape[1]
    kernels = kernel.expand(channels, -1, -1, -1)
    return F.conv2d(images, kernels, stride=stride, padding=1, groups=channels)


class BlurredConv2d(nn.Conv2d):
    """A convolution of blurred images, whose parameters have the names of a plain one."""

    kernel: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Blur the images and convolve them."""
        return super().forward(blur(images, self.kernel))


class BlurredMaxPool2d(nn.MaxPool2d):
    """A max-pooling without stride, followed by a blur with its stride."""

    kernel: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Take the maxima at stride 1 and blur them at this layer's stride."""
        maxima = F.max_pool2d(
            images, self.kernel_size, 1, self.padding, self.dilation, self.ceil_mode
        )
        return blur(maxima, self.kernel, self.stride)


def blur_strides(model: nn.Module, kind: str) -> None:
    """Blur a network before its strided convolutions, and with "all" in its max-pooling too.

    Convolutions of fewer than MIN_CHANNELS input channels stay. Names and weights do not change,
    nor does the state_dict.
    """
    for module in model.modules():
        match module:
            case nn.Conv2d() if max(module.stride) > 1 and module.in_channels >= MIN_CHANNELS:
                module.__class__ = BlurredConv2d
            case nn.MaxPool2d() if kind == "all" and module.stride != 1:
                module.__class__ = BlurredMaxPool2d
            case _:
                continue
        # A buffer: a new tensor in each forward pass would be copied from the host.
        module.register_buffer("kernel", blur_kernel(), persistent=False)
