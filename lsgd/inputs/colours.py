"""The colours of training images, changed on the device as lsgd.rules.augmentation says."""

from torch import Tensor

from lsgd.rules import augmentation

RED, GREEN, BLUE = augmentation.GREY.tolist()


def recolour(pixels: Tensor, colours: Tensor) -> None:
    """Change pixels (images, height, width, 3) of 0 to 255, which are contiguous, in place.

    `colours` is (images, 6), as augmentation.colours has it. Nothing is clamped.
    """
    images, _, width, _ = pixels.shape
    own, of_grey, of_mean = colours[:, :3].T.reshape(3, images, 1, 1)
    red, green, blue = pixels.unbind(-1)
    grey = (RED * red).add_(green, alpha=GREEN).add_(blue, alpha=BLUE)
    mean = grey.mean((1, 2), keepdim=True)
    grey.mul_(of_grey).add_(of_mean * mean)
    # A row at a time, all its channels, where that can be: on a CPU it is faster.
    rows = pixels.view(images, -1, 3 * width)
    rows.mul_(own)
    pixels.add_(grey[..., None])
    rows.add_((255 * colours[:, 3:]).repeat(1, width)[:, None])
