"""The check that a model of lsgd.virtual computes each image of several workers from it alone."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lsgd.errors import UsageError
from lsgd.job.device import run_compiled_modules_eagerly
from lsgd.models.forward_checks import find_dependence
from lsgd.rules.batchnorm import WorkerBatchNorm
from lsgd.rules.statistics_freshness import StatisticsFreshness

COUNT = 5
"""The number of images in a call, few since the CPU computes them."""


@contextmanager
def check_dependence(model: nn.Module, images: int) -> Iterator[None]:
    """Raise UsageError if the model's output for an image depends on others, or on earlier calls.

    Some of the `images` of the first call within this context go through a copy on the CPU, where
    an index that is no image's fails alone. A model that cannot be copied, or takes no other number
    of images, is not checked.
    """
    calls: list[Any] = []

    def note_call(_: nn.Module, args: object, kwargs: object) -> None:
        if not calls:
            calls.append((args, kwargs))

    with model.register_forward_pre_hook(note_call, with_kwargs=True):
        yield
    if not calls or first_length(calls[0]) != images:
        return
    is_compiling = "torch._dynamo" in sys.modules  # whose import takes seconds
    try:
        copied = copy_model(model).cpu()

        def call(numbers: list[int]) -> object:
            args, kwargs = tree_map(partial(_choose, numbers, images), calls[0])
            return copied(*args, **kwargs)

        # A compiled part would be compiled again for this number of images.
        with run_compiled_modules_eagerly() if is_compiling else nullcontext():
            found = find_dependence(copied, call, COUNT)
    except Exception:
        return
    if found:
        or_write = ", or from the images of one worker with workers_per_pass=1"
        raise UsageError(
            f"the model computes the output for an image also from {found}, so that the "
            "trajectory would depend on processes and workers_per_pass; compute it from the image "
            f"alone{or_write if 'images' in found else ''}"
        )


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model, whose batch norm layers may have statistics of an earlier step."""
    layers = (layer for layer in model.modules() if isinstance(layer, WorkerBatchNorm))
    memo: dict[int, Any] = {id(layer.freshness): StatisticsFreshness() for layer in layers}
    copied: nn.Module = copy.deepcopy(getattr(model, "_orig_mod", model), memo)
    return copied


def first_length(call: Any) -> int | None:
    """Return the length of the first tensor in the arguments of a call, or None without one."""
    tensors = (value for value in tree_leaves(call) if isinstance(value, Tensor) and value.dim())
    return next(map(len, tensors), None)


def _choose(numbers: list[int], images: int, value: Any) -> Any:
    """Return the rows of some images, each of which may be one of several numbers."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    if value.shape[:1] == (images,):
        value = value[[number % images for number in numbers]]
    return value.cpu()
