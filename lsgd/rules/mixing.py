"""Mixup and CutMix: each training image is mixed with another one of the same virtual worker.

Mixup (Zhang et al. 2018) adds two images, by the shares lambda and 1 - lambda. CutMix (Yun et al.
2019) replaces a window of the image, of the area 1 - lambda before it is cut off at the edges, by
the other image's pixels there. The loss is that of both labels, by the shares of their pixels.
lambda is Beta(alpha, alpha) distributed, once per worker and step, and the pairs are the worker's
images in their order and in the reverse one, as in timm. So neither depends on how many workers
share a micro-batch or a process.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.rules import philox

LAMBDA, WINDOW = 12, 13
"""The last element of the counter for the draws of lambda and of windows."""
MAX_TRIES = 48
"""The tries of a draw of lambda; one of alpha = 1 needs two on average, others fewer."""


def draw_mixing(
    examples: NDArray[np.int64], side: int, *, mixup: float, cutmix: float, seed: int, epoch: int
) -> NDArray[np.float64]:
    """Draw how each worker's images are mixed, shape (workers, 6).

    `examples` holds the first example of each worker in the step, which stands for the worker and
    the step, and `side` is that of an image in pixels. `mixup` and `cutmix` are their alphas, 0 to
    1, of which 0 turns them off; of two, each has probability 1/2. The columns are the share of an
    image's own label, the share of its own pixels outside the window, and the window (left, top,
    right, bottom) in pixels, within which all pixels are the other image's; mixup's is empty.
    """
    counter = (np.asarray(examples), epoch, 0, WINDOW)
    by_kind, across, down, _ = philox.uniforms(counter, key=seed)  # each (workers,)
    cuts = (by_kind < 0.5) if mixup and cutmix else np.full(len(examples), bool(cutmix))
    own = _betas(examples, np.where(cuts, cutmix, mixup), seed=seed, epoch=epoch)
    half = np.floor(side * np.sqrt(1 - own) / 2)
    centres = np.floor(np.stack((across, down), axis=1) * side)
    corners = np.concatenate((centres - half[:, None], centres + half[:, None]), axis=1)
    windows = np.where(cuts[:, None], np.clip(corners, 0, side), 0)
    left, top, right, bottom = windows.T
    own_label = np.where(cuts, 1 - (right - left) * (bottom - top) / side**2, own)
    return np.column_stack((own_label, np.where(cuts, 1.0, own), windows))


def _betas(
    examples: NDArray[np.int64], alphas: NDArray[np.float64], *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """Draw a Beta(alpha, alpha) number for each example, shape (examples,); alpha is at most 1."""
    tries = np.arange(MAX_TRIES)
    counter = (np.asarray(examples)[:, None], epoch, tries[None, :], LAMBDA)
    u, v, *_ = philox.uniforms(counter, key=seed)  # each (examples, tries)
    # Jöhnk 1964, by logarithms, since powers of 1 / alpha underflow for a small alpha.
    first, second = (np.log(1 - draw) / alphas[:, None] for draw in (u, v))
    both = np.logaddexp(first, second)
    taken = np.argmax(both <= 0, axis=1)
    rows = np.arange(len(examples))
    share: NDArray[np.float64] = np.exp(first[rows, taken] - both[rows, taken])
    return share


def mix_images(images: Tensor, mixing: Tensor) -> Tensor:
    """Return a micro-batch of images, each mixed with the other one of its pair.

    `images` is of shape (images, channels, height, width), with the workers' images interleaved as
    in a MicroBatch, and `mixing` is draw_mixing's result, on the same device.
    """
    table = mixing.to(images.dtype)
    own, (left, top, right, bottom) = table[:, 1], table[:, 2:].T[..., None]
    height, width = images.shape[2:]
    x, y = (torch.arange(n, device=images.device, dtype=table.dtype) for n in (width, height))
    inside = ((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :]
    shares = own[:, None, None] * ~inside  # (workers, height, width)
    pairs: Tensor = images.unflatten(0, (-1, len(mixing)))
    return torch.lerp(pairs.flip(0), pairs, shares[:, None]).flatten(0, 1)


def other_labels(labels: Tensor, workers: int) -> Tensor:
    """Return for each image of a micro-batch the label of the image that is mixed into it."""
    by_worker: Tensor = labels.unflatten(0, (-1, workers))
    return by_worker.flip(0).flatten()
