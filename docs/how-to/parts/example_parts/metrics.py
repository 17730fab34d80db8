"""The mean over the classes of the share of their images that are not recognized."""

import torch
from torch import Tensor


class MacroError:
    """Compute the mean of the errors of all classes, in percent, whatever their sizes."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        kinds = ("images", "wrong")
        self.count_names = tuple(f"{kind} of {label}" for kind in kinds for label in range(classes))

    def counts(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the numbers of images, and of wrong ones, of each class."""
        is_right = (logits.argmax(1) == labels) & logits.isfinite().all(1)
        images = torch.bincount(labels, minlength=self.classes)
        right = torch.zeros_like(images).index_add_(0, labels, is_right.to(images.dtype))
        return torch.cat((images, images - right))

    def value(self, counts: list[int]) -> float:
        """Return the mean error of the classes that have images."""
        images, wrong = counts[: self.classes], counts[self.classes :]
        errors = [100 * w / n for n, w in zip(images, wrong, strict=True) if n]
        return sum(errors) / len(errors)
