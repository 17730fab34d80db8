"""Batch normalisation over one worker's images, whatever else the forward pass carries.

With BN the loss is defined over subsets of size n, so n is part of the problem being solved and is
kept while k grows; statistics are never shared between workers (Goyal et al. 2017, section 2.3).
"""

from collections.abc import Callable
from functools import cache, partial

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


class WorkerBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose training statistics are over the images of one worker at a time.

    The parameters, buffers and evaluation are those of `nn.BatchNorm2d`, so that state dicts are
    interchangeable. The images of a pass fall to its `workers` in turns; the statistics are added
    up in `seen`, shape (2, channels), means and variances, and reach the running ones once per
    step, through RunningStatistics.
    """

    workers: int = 1
    seen: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (images, channels, height, width); in training, workers divides images."""
        if not self.training:
            return super().forward(input)
        normalise = normalisation(input, self.workers)
        output, seen = normalise(input, self.weight, self.bias, self.workers, self.eps)
        self.seen += seen
        return output


def normalisation(images: Tensor, workers: int) -> NormaliseWorkers:
    """What normalises so many workers fastest where and as these images are.

    One call of the library costs what plain BN does where the workers lie side by side. In
    channels_last they do not: a GPU runs one compiled expression per layer, and a CPU, which might
    have no compiler, copies the images.
    """
    if workers > 1 and images.is_cuda and not images.is_contiguous():
        return by_expression
    return by_call


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
    """Normalise with arithmetic that a compiler makes one kernel of."""
    # Within a model that is compiled as a whole it is compiled already.
    expression = _expression if torch.compiler.is_compiling() else _compiled()
    scale, shift = weight.view(-1, 1, 1), bias.view(-1, 1, 1)
    return expression(images, workers, scale, shift, eps)


def _expression(
    images: Tensor, workers: int, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    # In the precision of the parameters, which is higher than that of bfloat16 images.
    x = images.unflatten(0, (-1, workers)).to(scale.dtype)
    var, mean = torch.var_mean(x, dim=(0, 3, 4), correction=0, keepdim=True)
    output = (x - mean) * torch.rsqrt(var + eps) * scale + shift
    count = x.shape[0] * x.shape[3] * x.shape[4]
    seen = torch.stack([mean.sum((0, 1, 3, 4)), var.sum((0, 1, 3, 4)) * (count / (count - 1))])
    return output.flatten(0, 1).to(images.dtype), seen.detach()


@cache
def _compiled() -> Callable[[Tensor, int, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    # For any sizes, since a compilation takes seconds and torch gives up after 8 of one function:
    # ResNet-50 has 12 shapes, which so take one, and a pass of fewer workers another.
    return torch.compile(_expression, dynamic=True)


def worker_norms(model: nn.Module) -> list[WorkerBatchNorm2d]:
    """The layers of a model that normalise worker by worker; there may be none."""
    return [module for module in model.modules() if isinstance(module, WorkerBatchNorm2d)]


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


def _running(layer: WorkerBatchNorm2d) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var
