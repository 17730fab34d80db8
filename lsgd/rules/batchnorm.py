"""Batch normalisation over one worker's images, whatever else the forward pass carries.

With BN the loss is defined over subsets of size n, so n is part of the problem being solved and is
kept while k grows; statistics are never shared between workers (Goyal et al. 2017, section 2.3).
"""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.rules.sampler import Pass

NormaliseWorkers = Callable[[Tensor, Tensor, Tensor, int, float], tuple[Tensor, Tensor]]
"""Takes images (images, channels, height, width) of several workers in turns, as Pass.examples has
them, gamma, beta, the number of workers and epsilon.

Returns the normalised images, and what was seen, shape (2, channels): the workers' means, added up,
and their unbiased variances.
"""


class WorkerBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BN whose training statistics are over the images of one worker at a time.

    The parameters, buffers and evaluation are those of `nn.BatchNorm1d` and `nn.BatchNorm2d`, so
    that state dicts are interchangeable. The images of a pass fall to its `workers` in turns; the
    statistics are added up in `seen`, shape (2, channels), means and variances, and reach the
    running ones once per step, through RunningStatistics.
    """

    workers: int = 1
    seen: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (images, channels, …); in training, workers divides images."""
        if not self.training:
            return super().forward(input)
        normalise = normalisation(input, self.workers)
        output, seen = normalise(input, self.weight, self.bias, self.workers, self.eps)
        self.seen += seen
        return output


class WorkerBatchNorm1d(WorkerBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d`, worker by worker: of (images, channels) or (images, channels, length)."""


class WorkerBatchNorm2d(WorkerBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d`, worker by worker: of (images, channels, height, width)."""


def normalisation(images: Tensor, workers: int) -> NormaliseWorkers:
    """What normalises so many workers fastest where and as these images are.

    One call of the library costs what plain BN does where the workers lie side by side. In
    channels_last they do not: a GPU runs kernels that are compiled for them, and a CPU, which might
    have no compiler, copies the images.
    """
    if workers == 1 or not images.is_cuda or images.is_contiguous() or images.dim() < 4:
        return by_call
    # A model that is compiled as a whole has a compiler.
    if torch.compiler.is_compiling() or not no_compiler(images.device):
        return by_expression
    return by_call


@cache
def no_compiler(device: torch.device) -> str:
    """Why torch.compile makes no kernel for this device here, in a line; empty if it does.

    It needs Triton, and Triton a C compiler and Python's headers. Warns once if one is missing.
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


def by_call(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Normalise with PyTorch's own function, for which each worker has channels of its own; that of
    a single worker is the call of plain BN."""
    count, channels, *size = images.shape
    # A moving average of momentum 1 that starts at 0 is just the statistics.
    mean, var = seen = weight.new_zeros(2, workers * channels)
    call = partial(F.batch_norm, training=True, momentum=1.0, eps=eps)
    if workers == 1:
        return call(images, mean, var, weight, bias), seen
    output = call(
        images.reshape(count // workers, workers * channels, *size),
        mean,
        var,
        weight.expand(workers, -1).flatten(),
        bias.expand(workers, -1).flatten(),
    )
    # No view: autograd copies what is behind a view that is changed in place, as ReLU does.
    output = torch.ops.aten._unsafe_view(output, images.shape)
    return output, seen.unflatten(1, (workers, channels)).sum(1)


def by_expression(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Normalise with arithmetic that a compiler makes kernels of."""
    output, seen = _Expression.apply(images, weight, bias, workers, eps)  # type: ignore[no-untyped-call]
    return output, seen


class _Expression(torch.autograd.Function):
    """BN of each worker, and its gradient in closed form (Ioffe and Szegedy 2015, section 3).

    Autograd's own gradient would go over images and their gradients once for gamma and beta, and
    again for every worker's sums, of which those are the sum.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Output, in the images' type, and what was seen."""
        output, seen, mean, inverse_std = _kernel(_forward)(images, weight, bias, workers, eps)
        ctx.save_for_backward(images, weight, mean, inverse_std)
        ctx.mark_non_differentiable(seen)
        return output, seen

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of images, gamma and beta."""
        return *_kernel(_backward)(upstream[0], *ctx.saved_tensors), None, None


def _forward(
    images: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # In the precision of the parameters, which is higher than that of bfloat16 images.
    x = _pixels(images, workers).to(weight.dtype)
    var, mean = torch.var_mean(x, dim=(0, 2), correction=0, keepdim=True)
    inverse_std = torch.rsqrt(var + eps)
    output = (x - mean) * (inverse_std * weight) + bias
    count = x.shape[0] * x.shape[2]
    seen = torch.stack([mean.sum((0, 1, 2)), var.sum((0, 1, 2)) * (count / (count - 1))])
    # No view, which a ReLU in place would not be allowed to change; a compiler makes no copy of it.
    return _images(output.to(images.dtype), images).clone(), seen, mean, inverse_std


def _backward(
    upstream: Tensor, images: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    workers = mean.shape[1]
    dy = _pixels(upstream, workers).to(weight.dtype)
    x_hat = (_pixels(images, workers).to(weight.dtype) - mean) * inverse_std
    # Of each worker; the statistics are of its images, so what moves them moves all of them.
    dbeta = dy.sum((0, 2), keepdim=True)
    dgamma = (dy * x_hat).sum((0, 2), keepdim=True)
    count = dy.shape[0] * dy.shape[2]
    dx = (inverse_std * weight) * (dy - (dbeta + x_hat * dgamma) / count)
    return _images(dx.to(images.dtype), images), dgamma.sum((0, 1, 2)), dbeta.sum((0, 1, 2))


def _pixels(images: Tensor, workers: int) -> Tensor:
    """The images (n, workers, pixels, channels), which are that in memory in channels_last."""
    rows = images.permute(0, 2, 3, 1)
    return rows.reshape(-1, workers, rows.shape[1] * rows.shape[2], rows.shape[3])


def _images(pixels: Tensor, like: Tensor) -> Tensor:
    """The pixels (n, workers, pixels, channels) as images again."""
    count, channels, *size = like.shape
    return pixels.reshape(count, *size, channels).permute(0, 3, 1, 2)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # For each shape anew: kernels for any shape split all layers as the first, and write sums of
    # parts that are four times the size of a small layer. ResNet-50 has 12 shapes, and a step up to
    # 4 kinds of passes; torch gives a function up after 8 compilations.
    torch.compiler.config.recompile_limit = 64
    return torch.compile(function, dynamic=False)


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    # Within a model that is compiled as a whole it is compiled already.
    return function if torch.compiler.is_compiling() else _compiled(function)


def worker_norms(model: nn.Module) -> list[WorkerBatchNorm]:
    """The layers of a model that normalise worker by worker; there may be none."""
    return [module for module in model.modules() if isinstance(module, WorkerBatchNorm)]


class RunningStatistics:
    """This process's share of all running means and variances of a model, which has some.

    The moving average is linear, so it may be kept in parts: after a step every process does

        share <- (1 - momentum) share + momentum (sum over its workers) / (active workers of all)

    having started with hosted / workers of the initial value, and the sum of the shares is what one
    process with all workers would have. So a step needs no communication. Whoever wants the
    statistics, to evaluate or to save, asks for them with `settle`.
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
        self.layers = worker_norms(model)
        # The paper's running average with momentum 0.9 is PyTorch's momentum 0.1; with 1 it is of
        # the last step alone.
        self.momentum = momentum
        self.fraction = hosted / workers
        self.share = self._read() * self.fraction
        self.seen = torch.zeros_like(self.share)
        parts = self.seen.split([2 * layer.num_features for layer in self.layers])
        for layer, part in zip(self.layers, parts, strict=True):
            layer.seen = part.view(2, layer.num_features)
        self.counters = [
            count for layer in self.layers if (count := layer.num_batches_tracked) is not None
        ]

    def start_pass(self, each: Pass) -> None:
        """Tell every layer how many workers the coming pass carries."""
        workers = len(each.workers)
        for layer in self.layers:
            layer.workers = workers

    def end_step(self, active_workers: int) -> None:
        """Move this process's share, once, by what its workers saw in all passes of the step."""
        self.share.mul_(1 - self.momentum).add_(self.seen, alpha=self.momentum / active_workers)
        self.seen.zero_()
        # All at once, which a GPU needs one launch for.
        torch._foreach_add_(self.counters, 1)

    def settle(self, sum_: Callable[[Tensor], None]) -> None:
        """Write the sum of all shares into the model; `sum_` adds a tensor over the processes."""
        total = self.share.clone()
        sum_(total)
        self._write(total)

    def measure(self, active_workers: int, sum_: Callable[[Tensor], None]) -> None:
        """Write into the model the mean of what these passes have seen, of so many workers of all
        processes, and leave the moving average as it is."""
        total = self.seen / active_workers
        self.seen.zero_()
        sum_(total)
        self._write(total)

    def state(self, sum_: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """Every process's share, shape (world_size, statistics), for a checkpoint."""
        shares = self.share.new_zeros(self.world_size, len(self.share))
        shares[self.rank] = self.share
        sum_(shares)
        return {"shares": shares}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from the state in a checkpoint, made by any number of processes.

        As many processes as before take up their own shares, bit by bit; another number divides
        the sum among themselves.
        """
        shares = state["shares"]
        same = len(shares) == self.world_size
        self.share.copy_(shares[self.rank] if same else shares.sum(0) * self.fraction)

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
