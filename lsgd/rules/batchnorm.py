"""Batch normalisation over the images of one worker, however many workers a micro-batch carries.

With BN the loss is defined over subsets of n images, so n is part of the problem and is kept while
k grows; statistics are never shared between workers (Goyal et al. 2017, section 2.3).
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.errors import UsageError
from lsgd.rules.backward import in_backward
from lsgd.rules.sampler import MicroBatch
from lsgd.rules.statistics_freshness import StatisticsFreshness

TRITON = ("cuda", "xpu")
"""The device types for which Triton compiles kernels."""
NormaliseWorkers = Callable[[Tensor, Tensor, Tensor, int, float], tuple[Tensor, Tensor]]
"""The type of a function that normalises the images of several workers, each worker alone.

It takes images (images, channels, height, width) in the order of MicroBatch.examples, gamma, beta,
the number of workers and epsilon. It returns the normalised images, and the sums over workers of
means and unbiased variances, shape (2, channels).
"""


class WorkerBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm layer that in training normalises each virtual worker's images separately.

    Parameters, buffers and evaluation are those of `nn.BatchNorm1d` and `nn.BatchNorm2d`, so that
    state dicts are interchangeable. The images of a micro-batch belong to its `workers` in turns.
    Means and variances are added up in `seen`, shape (2, channels), and update the running
    statistics once per step, through RunningStatistics. `calls` is a list of one number, that of
    calls in this micro-batch, since an assignment to a module takes ten times as long.

    In a network that makes several rows of each image, such as tokens, `rows_per_image` is their
    number, and the rows of one image are adjacent. In images of another size it is another one,
    which follows from the number of `images` of the micro-batch.

    A layer with `is_frozen` stays in evaluation mode: it normalises by its running statistics,
    which do not change.
    """

    is_frozen: bool = False
    workers: int = 1
    rows_per_image: int = 1
    images: int = 0
    """The images of the micro-batch; 0 if rows_per_image is the number in all of them."""
    seen: Tensor
    calls: list[int] = [1]  # noqa: RUF012
    """The number of calls in this micro-batch; unread in layers without RunningStatistics."""
    freshness: StatisticsFreshness | None = None
    """The check of evaluations and saves, in layers of lsgd.virtual."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (images, channels, …), in training over the images of each virtual worker."""
        if not self.training:
            if self.freshness:
                self.freshness.check("an evaluation")
            return super().forward(input)
        images = input
        if self.workers > 1 and self.rows_per_image > 1:
            # The rows of an image become its pixels.
            rows = len(input) // self.images if self.images else self.rows_per_image
            of_images = input.unflatten(0, (-1, rows)).transpose(1, 2)
            images = of_images.flatten(2)
        normalise = choose_normalisation(images, self.workers)
        output, seen = normalise(images, self.weight, self.bias, self.workers, self.eps)
        # Activation checkpointing calls the layer a second time, from the backward pass.
        if not (self.calls[0] and in_backward()):
            self.calls[0] += 1
            self.seen.add_(seen)  # += would assign an attribute of a module, which takes as long
        if images is input:
            return output
        return output.view(of_images.shape).transpose(1, 2).flatten(0, 1)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this layer: training, or evaluation, which a frozen layer always has."""
        return super().train(mode and not self.is_frozen)

    def reset_running_stats(self) -> None:
        """Reset the running statistics; raises UsageError if forward passes do not update them."""
        if self.freshness:
            raise UsageError(
                "the running BN statistics of a model of virtual(…), or of its copy, cannot be "
                "reset, as by update_bn, since its forward passes do not update them; call "
                "step.close() first, or make the copy before virtual(…)"
            )
        super().reset_running_stats()

    def _save_to_state_dict(self, *into: Any) -> None:
        if self.freshness:
            self.freshness.check("state_dict()")
        super()._save_to_state_dict(*into)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self.freshness and f"{prefix}running_mean" in state_dict:
            self.freshness.end_load()


class WorkerBatchNorm1d(WorkerBatchNorm, nn.BatchNorm1d):
    """An `nn.BatchNorm1d` that in training normalises each virtual worker's images separately."""


class WorkerBatchNorm2d(WorkerBatchNorm, nn.BatchNorm2d):
    """An `nn.BatchNorm2d` that in training normalises each virtual worker's images separately."""


class WorkerBatchNormAct2d(WorkerBatchNorm2d):
    """A timm batch norm with dropout and activation, which normalises each worker separately.

    Its state_dict keys are those of plain BN.
    """

    drop: Any
    act: Any

    def forward(self, input: Tensor) -> Tensor:
        """Batch-normalise images (images, channels, height, width); apply dropout, activation."""
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


def worker_batch_norm_type(norm: nn.Module) -> type[WorkerBatchNorm] | None:
    """Return the class that normalises per virtual worker in place of a batch norm's own class.

    It is None for a layer that is not known, which may mix the images of several workers.
    """
    if isinstance(norm, WorkerBatchNorm):
        return type(norm)
    if type(norm) is nn.BatchNorm1d:
        return WorkerBatchNorm1d
    if type(norm) is nn.BatchNorm2d:
        return WorkerBatchNorm2d
    if isinstance(norm, nn.BatchNorm2d) and hasattr(norm, "drop") and hasattr(norm, "act"):
        return WorkerBatchNormAct2d
    return None


def keeps_images_apart(norm: nn.Module) -> bool:
    """Return whether a layer is an instance norm without running statistics."""
    is_instance_norm = isinstance(norm, nn.modules.instancenorm._InstanceNorm)
    return is_instance_norm and not norm.track_running_stats


def choose_normalisation(images: Tensor, workers: int) -> NormaliseWorkers:
    """Choose the fastest batch-norm function for several workers' images, by device and layout.

    In contiguous memory the channels of all workers are adjacent, and one library call costs what
    plain BN does. In channels_last they are not: a GPU runs compiled kernels, and other devices,
    which may have no compiler, make a call for each worker, so that the images stay channels_last.
    """
    if workers == 1 or images.is_contiguous() or images.dim() < 4:
        return normalise_by_library
    if images.device.type not in TRITON:
        return normalise_by_library if torch.compiler.is_compiling() else normalise_in_turn
    # A model that is being compiled has a compiler.
    if torch.compiler.is_compiling() or not compiler_problem(images.device):
        return normalise_compiled
    return normalise_by_library


@cache
def compiler_problem(device: torch.device) -> str:
    """Return why torch.compile makes no kernel for a device, or an empty string if it does.

    It needs Triton, and Triton needs a C compiler and Python's headers. Warns once if one is
    missing.
    """
    try:
        torch.compile(torch.neg)(torch.ones(1, device=device))
    except Exception as error:
        why = str(error).strip().splitlines()[0]
        warnings.warn(
            f"torch.compile makes no kernels for {device.type} here ({why}), and BN of several "
            "workers copies their images instead; install gcc, python3-dev and triton",
            stacklevel=2,
        )
        return why
    return ""


def normalise_by_library(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Batch-normalise each worker's images by F.batch_norm, as separate channels of one call.

    For a single worker this is the call of plain BN.
    """
    count, channels, *size = images.shape
    # A moving average with momentum 1 is the statistics of this call.
    seen = weight.new_zeros(2, workers * channels)
    mean, var = seen.unbind()
    if workers == 1:
        return F.batch_norm(images, mean, var, weight, bias, True, 1.0, eps), seen
    output = F.batch_norm(
        images.reshape(count // workers, workers * channels, *size),
        mean,
        var,
        weight.expand(workers, -1).flatten(),
        bias.expand(workers, -1).flatten(),
        training=True,
        momentum=1.0,
        eps=eps,
    )
    # Not a view: autograd would copy its base when an in-place ReLU changes it.
    output = torch.ops.aten._unsafe_view(output, images.shape)
    return output, seen.view(2, workers, channels).sum(1)


def normalise_in_turn(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Batch-normalise each worker's images by a library call of its own, in channels_last.

    One call for all would copy the images into contiguous memory and back for the next convolution,
    pixel by pixel; a copy of one worker's images moves whole images.
    """
    output, seen = _InTurn.apply(images, weight, bias, workers, eps)  # type: ignore[no-untyped-call]
    return output, seen


class _InTurn(torch.autograd.Function):
    """The autograd function of BN with a call for each worker.

    Autograd would clone the gradient of all images once for each worker.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the batch-normalised images and the sums of the workers' means and variances."""
        output = torch.empty_like(images, memory_format=torch.channels_last)
        # A moving average with momentum 1 is the statistics of this call.
        seen = weight.new_zeros(workers, 2, images.shape[1])
        saved = []
        for worker in range(workers):
            own = _images_of(worker, workers, images)
            normalised, mean, inverse_std = torch.native_batch_norm(
                own, weight, bias, seen[worker, 0], seen[worker, 1], True, 1.0, eps
            )
            output[worker::workers] = normalised
            saved += [own, mean, inverse_std]
        ctx.save_for_backward(weight, *saved)
        ctx.eps = eps
        seen = seen.sum(0)
        ctx.mark_non_differentiable(seen)
        return output, seen

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a batch norm's images, gamma and beta."""
        _check_first_derivative()
        weight, *saved = ctx.saved_tensors
        workers = len(saved) // 3
        dx = torch.empty_like(upstream[0], memory_format=torch.channels_last)
        dgamma, dbeta = torch.zeros_like(weight), torch.zeros_like(weight)
        for worker in range(workers):
            images, mean, inverse_std = saved[3 * worker : 3 * worker + 3]
            own = torch.ops.aten.native_batch_norm_backward(
                _images_of(worker, workers, upstream[0]),
                *(images, weight, None, None, mean, inverse_std),
                train=True,
                eps=ctx.eps,
                output_mask=[True] * 3,
            )
            dx[worker::workers] = own[0]
            dgamma += own[1]
            dbeta += own[2]
        return dx, dgamma, dbeta, None, None


def _images_of(worker: int, workers: int, images: Tensor) -> Tensor:
    """Copy one worker's images of a micro-batch of several, in channels_last."""
    return images[worker::workers].contiguous(memory_format=torch.channels_last)


def _check_first_derivative() -> None:
    """Raise UsageError in a backward pass with create_graph=True.

    Autograd would differentiate its operations, although means and deviations are constants there.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise UsageError(
            "batch norm of several workers in a pass, in channels_last, has no second derivative, "
            "as a gradient penalty needs it; use workers_per_pass=1 or contiguous images"
        )


def normalise_compiled(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Batch-normalise each worker's images by arithmetic that torch.compile turns into kernels."""
    output, seen = _Expression.apply(images, weight, bias, workers, eps)  # type: ignore[no-untyped-call]
    return output, seen


class _Expression(torch.autograd.Function):
    """The autograd function of per-worker BN, its gradient in closed form (Ioffe and Szegedy 2015).

    Autograd would read images and gradients once for the gradients of gamma and beta, and again for
    every worker's sums, although the former are the totals of the latter.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the batch-normalised images and the sums of the workers' means and variances."""
        output, seen, mean, inverse_std = _kernel(_forward)(images, weight, bias, workers, eps)
        ctx.save_for_backward(images, weight, mean, inverse_std)
        ctx.mark_non_differentiable(seen)
        return output, seen

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a batch norm's images, gamma and beta."""
        _check_first_derivative()
        return *_kernel(_backward)(upstream[0], *ctx.saved_tensors), None, None


def _forward(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # The parameters have a higher precision than bfloat16 images.
    x = _pixels(images, workers).to(weight.dtype)
    var, mean = torch.var_mean(x, dim=(0, 2), correction=0, keepdim=True)
    inverse_std = torch.rsqrt(var + eps)
    output = (x - mean) * (inverse_std * weight) + bias
    count = x.shape[0] * x.shape[2]
    seen = torch.stack([mean.sum((0, 1, 2)), var.sum((0, 1, 2)) * (count / (count - 1))])
    # Not a view, which an in-place ReLU may not change; the compiler removes the copy.
    return _images(output.to(images.dtype), images).clone(), seen, mean, inverse_std


def _backward(
    upstream: Tensor, images: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    workers = mean.shape[1]
    dy = _pixels(upstream, workers).to(weight.dtype)
    x_hat = (_pixels(images, workers).to(weight.dtype) - mean) * inverse_std
    # The sums of each worker, since each of its images contributes to its statistics.
    dbeta = dy.sum((0, 2), keepdim=True)
    dgamma = (dy * x_hat).sum((0, 2), keepdim=True)
    count = dy.shape[0] * dy.shape[2]
    dx = (inverse_std * weight) * (dy - (dbeta + x_hat * dgamma) / count)
    return _images(dx.to(images.dtype), images), dgamma.sum((0, 1, 2)), dbeta.sum((0, 1, 2))


def _pixels(images: Tensor, workers: int) -> Tensor:
    """Reshape images to (n, workers, pixels, channels), a view of memory in channels_last."""
    rows = images.permute(0, 2, 3, 1)
    return rows.reshape(-1, workers, rows.shape[1] * rows.shape[2], rows.shape[3])


def _images(pixels: Tensor, like: Tensor) -> Tensor:
    """Reshape (n, workers, pixels, channels) back to the shape of the images `like`."""
    count, channels, *size = like.shape
    return pixels.reshape(count, *size, channels).permute(0, 3, 1, 2)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Each shape is compiled separately: kernels for dynamic shapes split all layers like the first,
    # and write partial sums of four times the size of a small layer. ResNet-50 has 12 shapes, and a
    # step up to 4 micro-batch sizes; torch stops compiling a function after 8 times by default.
    torch.compiler.config.recompile_limit = 64
    return torch.compile(function, dynamic=False)


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    # Within a compiled model the function is part of that compilation.
    return function if torch.compiler.is_compiling() else _compiled(function)


def worker_batch_norms(model: nn.Module) -> list[WorkerBatchNorm]:
    """Return all batch norm layers of a model that normalise per virtual worker.

    Those that are frozen do not.
    """
    return [
        module
        for module in model.modules()
        if isinstance(module, WorkerBatchNorm) and not module.is_frozen
    ]


class RunningStatistics:
    """This process's additive share of a model's running batch-norm means and variances.

    The moving average is linear, so it can be kept in shares. After a step every process computes

        share <- (1 - momentum) share + momentum (sum over its workers) / (active workers of all)

    from a start of hosted / workers of the initial value. If all workers call a layer several times
    in a step, a worker has the mean over its calls, and a layer that no worker calls keeps its
    share. The sum of the shares equals the statistics of one process with all workers, so a step
    needs no communication. With unequal numbers of calls it would not: a single process takes the
    mean over all calls, and one of several raises UsageError where its own workers differ.
    To evaluate or save, call `write_to_model`.
    """

    name = "batchnorm"

    def __init__(
        self,
        model: nn.Module,
        *,
        hosted: int,
        workers: int,
        rank: int,
        world_size: int,
        momentum: float = 0.1,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.layers = worker_batch_norms(model)
        self._of_rows = [layer for layer in self.layers if layer.rows_per_image > 1]
        # The paper's running average with momentum 0.9 is PyTorch's momentum 0.1; momentum 1 keeps
        # only the last step.
        self.momentum = momentum
        self.fraction = hosted / workers
        self.share = self._read() * self.fraction
        self._pending = torch.zeros_like(self.share)
        for layer, part in zip(self.layers, self._parts(self._pending), strict=True):
            layer.seen, layer.calls = part.view(2, layer.num_features), [1]
        # An ordinary step compares lists, and calls nothing for its counts.
        self._calls = [layer.calls for layer in self.layers]
        self._once = [[1]] * len(self.layers)
        self._current = self._workers = 0
        """The workers of the current micro-batch, and of all since the last update."""
        self._further_calls: dict[int, list[int]] = {}
        """The calls since the last update beyond one, by layer; of workers with one call, none."""
        self._uncalled: list[int] = []
        """The layers that the last step of this process with examples did not call."""
        self.counters = [
            count for layer in self.layers if (count := layer.num_batches_tracked) is not None
        ]

    def start_micro_batch(self, each: MicroBatch) -> None:
        """Set the next micro-batch's number of workers on every batch norm layer."""
        if self._calls != self._once:
            self._count_calls()
        workers = len(each.workers)
        for layer in self.layers:
            if layer.workers != workers:  # an assignment to a module takes ten times as long
                layer.workers = workers
            layer.calls[0] = 0
        for layer in self._of_rows:
            layer.images = len(each.examples)
        self._current = workers
        self._workers += workers

    @property
    def pending_update(self) -> Tensor:
        """The sum of the statistics of this process's workers since the last update."""
        self._average_calls()
        return self._pending

    def check_all_called(self) -> None:
        """Raise UsageError if a layer was not called, whose statistics a server would not keep.

        The calls since the last update are those of one worker, equally often in its steps or not.
        """
        self._average_calls(of_one_worker=True)
        if self._uncalled:
            channels = self.layers[self._uncalled[0]].num_features
            raise UsageError(
                f"a batch norm layer of {channels} channels was not called in a training step, and "
                "a server would not keep its running statistics; remove the layer, or write "
                "strategy=allreduce"
            )

    def discard(self) -> None:
        """Discard the statistics of the micro-batches of a step that an error has ended."""
        self._current = self._workers = 0
        self._further_calls = {}
        for calls in self._calls:
            calls[0] = 1
        self._pending.zero_()

    def _count_calls(self) -> None:
        """Count how often the last micro-batch called each batch norm layer beyond once."""
        if not self._current:
            self._pending.zero_()  # of calls between two steps, which are nobody's
        for layer, calls in enumerate(self._calls):
            if calls[0] != 1 and self._current:
                of_workers = [calls[0] - 1] * self._current
                self._further_calls.setdefault(layer, []).extend(of_workers)
            calls[0] = 1

    def _average_calls(self, *, of_one_worker: bool = False) -> None:
        """Make the pending statistics of each worker their mean over its calls of a layer."""
        if self._calls != self._once:
            self._count_calls()
        if self._workers:
            self._uncalled = []
        for layer, further in self._further_calls.items():
            calls = self._workers + sum(further)
            differ = len(further) < self._workers or len({*further}) > 1
            if differ and self.world_size > 1 and not of_one_worker:
                raise UsageError(
                    f"a batch norm layer of {self.layers[layer].num_features} channels was called "
                    "by some workers of a step more often than by others, and its running "
                    "statistics would depend on the number of processes; call it equally often for "
                    "all, take a norm without them, such as GroupNorm, or train with one process",
                    is_local=True,
                )
            if not calls:
                self._uncalled.append(layer)
            else:
                self.layers[layer].seen.mul_(self._workers / calls)
        self._further_calls = {}
        self._current = self._workers = 0

    def end_step(self, active_workers: int) -> None:
        """Update this process's share of the running BN statistics with the step's statistics."""
        kept = []
        if self._calls != self._once or self._further_calls or self._uncalled:
            self._average_calls()
            shares = self._parts(self.share)
            kept = [(shares[layer], shares[layer].clone()) for layer in self._uncalled]
        self._current = self._workers = 0
        self.share.mul_(1 - self.momentum).add_(self._pending, alpha=self.momentum / active_workers)
        for part, value in kept:
            part.copy_(value)
        self._pending.zero_()
        # One kernel launch for all counters.
        torch._foreach_add_(self.counters, 1)

    def read_from_layer(self, number: int) -> None:
        """Take this process's share of the running statistics that one layer holds now."""
        total = torch.cat(_running(self.layers[number]))
        self._parts(self.share)[number].copy_(total * self.fraction)

    def write_to_model(self, sum_: Callable[[Tensor], None]) -> None:
        """Write the running BN statistics, summed over processes by `sum_`, into the model."""
        total = self.share.clone()
        sum_(total)
        self._write(total)

    def measure(self, active_workers: int, sum_: Callable[[Tensor], None]) -> None:
        """Write the mean BN statistics of the last micro-batches into the model, to evaluate it.

        `active_workers` of all processes had examples in them. The moving average does not change.
        """
        total = self.pending_update / active_workers
        for layer in self._uncalled:
            self._parts(total)[layer].copy_(self._parts(self.share)[layer])
        self.pending_update.zero_()
        sum_(total)
        self._write(total)

    def state(self, sum_: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """Return every process's share of the running statistics, (world_size, statistics)."""
        shares = self.share.new_zeros(self.world_size, len(self.share))
        shares[self.rank] = self.share
        sum_(shares)
        return {"shares": shares}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load this process's share of running statistics that any number of processes saved.

        With the same number of processes each restores its own share bit by bit; with another
        number they divide the sum among themselves.
        """
        shares = state["shares"]
        same = len(shares) == self.world_size
        self.share.copy_(shares[self.rank] if same else shares.sum(0) * self.fraction)

    def _parts(self, statistics: Tensor) -> tuple[Tensor, ...]:
        """Split the statistics of all layers into those of each, as views."""
        parts: tuple[Tensor, ...] = statistics.split([2 * b.num_features for b in self.layers])
        return parts

    def _read(self) -> Tensor:
        return torch.cat([buffer for layer in self.layers for buffer in _running(layer)])

    def _write(self, statistics: Tensor) -> None:
        parts = iter(statistics.split([n for b in self.layers for n in 2 * (b.num_features,)]))
        for layer in self.layers:
            for buffer in _running(layer):
                buffer.copy_(next(parts))


def _running(layer: WorkerBatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var
