"""The rows that each batch norm layer of lsgd.virtual gets of an image, counted and checked."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lsgd.errors import UsageError
from lsgd.models.forward_checks import find_scattered_rows
from lsgd.own_parts import first_line
from lsgd.rules.batchnorm import WorkerBatchNorm
from lsgd.virtual.dependence import copy_model, first_length

ONE_WORKER = "use workers_per_pass=1"


class RowCounter:
    """A counter of the input rows per image of each batch norm layer, such as tokens.

    A micro-batch of several workers needs it, since it has the images of the workers in turns.
    """

    def __init__(self, model: nn.Module, layers: list[WorkerBatchNorm], worker_batch: int) -> None:
        self.model, self.worker_batch = model, worker_batch
        self.paths = {each: path for path, each in model.named_modules() if each in layers}
        self._checked: set[nn.Module] = set()

    @contextmanager
    def count(self, images: int, workers: int) -> Iterator[None]:
        """Set the layers' rows per image by the forward pass of a micro-batch within the context.

        Raises UsageError if a worker has one value for each channel, or if a layer's rows are not
        grouped by image.
        """
        calls: list[Any] = []

        def note_call(_: nn.Module, args: object, kwargs: object) -> None:
            calls.append((args, kwargs))

        def count_rows(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._set_rows(layer, inputs[0], images)

        with ExitStack() as hooks:
            for layer in self.paths:
                hooks.enter_context(layer.register_forward_pre_hook(count_rows))
            of_model = self.model.register_forward_pre_hook(note_call, with_kwargs=True)
            hooks.enter_context(of_model)
            yield
        several = {layer for layer in self.paths if layer.rows_per_image > 1}
        if workers > 1 and not several <= self._checked:
            self._check_order(several, calls, images)
            self._checked |= several

    def _set_rows(self, layer: nn.Module, values: Tensor, images: int) -> None:
        rows, rest = divmod(len(values), images)
        if rest:
            raise UsageError(
                f"the batch norm layer {self.paths[layer]} gets {len(values)} rows for {images} "
                f"images, not the same number for each image; {ONE_WORKER}"
            )
        if rows * prod(values.shape[2:]) * self.worker_batch == 1:
            raise UsageError(
                f"the batch norm layer {self.paths[layer]} gets one value of each channel from a "
                "worker with worker_batch=1, which has no variance; use a larger worker_batch"
            )
        layer.rows_per_image = rows  # type: ignore[assignment]

    def _check_order(self, layers: set[nn.Module], calls: list[Any], images: int) -> None:
        """Raise UsageError unless the rows of an image are adjacent in the input of the layers."""
        some = ", ".join(sorted(self.paths[layer] for layer in layers))
        begin = f"the batch norm layer {some} gets several rows for each image"
        if not calls or any(first_length(call) != images for call in calls):
            raise UsageError(
                f"{begin}, and the model was not called with the {images} images of the "
                f"micro-batch, so that it is unknown which rows are of which worker; {ONE_WORKER}"
            )
        try:
            copied = copy_model(self.model).to("cpu").float()
            args, kwargs = tree_map(lambda value: _probe(value, images), calls[0])

            def call(part: slice) -> None:
                of_part = tree_map(lambda value: _slice(value, part), (args, kwargs))
                copied(*of_part[0], **of_part[1])

            path = find_scattered_rows(copied, call)
        except Exception as error:
            raise UsageError(
                f"{begin}, and a copy of the model fails to compute which rows are of which "
                f"worker ({first_line(error)}); {ONE_WORKER}"
            ) from error
        if path:
            raise UsageError(
                f"the batch norm layer {path} gets rows in which those of an image are not "
                f"adjacent, so that workers would share statistics; {ONE_WORKER}"
            )


def _probe(value: Any, images: int) -> Any:
    """Return an argument of the model for two images, of random numbers if they are no integers."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if not value.dim() or len(value) != images:
        return value.float() if value.is_floating_point() else value
    if not value.is_floating_point():
        return value[:2]
    generator = torch.Generator().manual_seed(0)
    shape = 2, *value.shape[1:]
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _slice(value: Any, part: slice) -> Any:
    return value[part] if isinstance(value, Tensor) and value.dim() and len(value) == 2 else value
