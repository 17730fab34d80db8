"""The groups of torch operators in a training step of a convolutional network, for its roofline."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lsgd.profile.traffic import COPIES

GROUPS: Mapping[str, tuple[str, ...]] = {
    "convolution, forward": ("convolution", "mkldnn_convolution"),
    "convolution, backward": ("convolution_backward",),
    "BN, forward": ("native_batch_norm", "_native_batch_norm_legit"),
    "BN, backward": ("native_batch_norm_backward",),
    "ReLU, forward": ("relu", "relu_", "clamp_min", "clamp_min_"),
    "ReLU, backward": ("threshold_backward",),
    "additions": ("add", "add_"),
    "pooling": (
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
        *("mean", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
    ),
    "linear layer": ("addmm", "mm"),
    "loss and counts": (
        *("_log_softmax", "_log_softmax_backward_data"),
        *("nll_loss_forward", "nll_loss_backward", "topk", "eq"),
    ),
    "optimizer": (
        *("_fused_sgd_", "_foreach_add_", "_foreach_mul_"),
        *("linalg_vector_norm", "_foreach_norm"),
    ),
}
"""The operators of each group; additions are those of residuals, gradients and statistics."""
LAYOUT, DTYPE, COPY, OTHER = "layout conversions", "dtype conversions", "copies", "other"
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def operator_group(name: str, args: Any, result: Any) -> str:
    """Return the group of a torch operator call, for a copy by what it changes of its tensor.

    Conversions inside of an operator, such as oneDNN's into its own layouts, are part of it.
    """
    if name in COPIES:
        tensors = [each for each in tree_leaves((args, result)) if isinstance(each, Tensor)]
        first, last = tensors[0], tensors[-1]
        source = tensors[1] if name == "copy_" else first
        if source.shape == last.shape and source.dim() > 1 and source.stride() != last.stride():
            return LAYOUT
        return DTYPE if source.dtype != last.dtype else COPY
    return _GROUP_OF.get(name, OTHER)
