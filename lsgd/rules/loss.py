"""The binary cross-entropy of class labels, a loss of one-against-all classification."""

import torch
from torch import Tensor
from torch.nn import functional as F


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float, over_classes: str
) -> Tensor:
    """Return the binary cross-entropy of each image, summed or averaged over its classes.

    `logits` has shape (images, classes). The target is 1 for the label's class and 0 for others;
    smoothing e makes them 1 - e + e / K and e / K, as in cross-entropy.
    """
    classes = logits.shape[1]
    # Compared rather than one_hot, which reads the labels on some devices.
    is_label = labels[:, None] == torch.arange(classes, device=labels.device)
    targets = is_label.to(logits.dtype) * (1 - smoothing) + smoothing / classes
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return losses.sum(1) if over_classes == "sum" else losses.mean(1)
