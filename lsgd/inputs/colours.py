"""The colour jitter of training images on the device, as lsgd.rules.augmentation defines it."""

from torch import Tensor

from lsgd.rules import augmentation

RED, GREEN, BLUE = augmentation.GREY.tolist()


def recolour(pixels: Tensor, colours: Tensor) -> None:
    """Apply given colour jitter to each image of a batch (pixels of 0 to 255) in place, unclamped.

    `pixels` is contiguous and has the shape (images, height, width, 3); `colours`, from
    augmentation.colour_transforms, has the shape (images, 6).
    """
    images, _, width, _ = pixels.shape
    own, of_grey, of_mean = colours[:, :3].T.reshape(3, images, 1, 1)
    red, green, blue = pixels.unbind(-1)
    grey = (RED * red).add_(green, alpha=GREEN).add_(blue, alpha=BLUE)
    mean = grey.mean((1, 2), keepdim=True)
    grey.mul_(of_grey).add_(of_mean * mean)
    # One row with all its channels at a time, since this is faster on a CPU.
    rows = pixels.view(images, -1, 3 * width)
    rows.mul_(own)
    pixels.add_(grey[..., None])
    rows.add_((255 * colours[:, 3:]).repeat(1, width)[:, None])
