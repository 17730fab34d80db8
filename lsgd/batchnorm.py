"""Batch normalisation over one worker's images, whatever else the forward pass carries.

With BN the loss is defined over subsets of size n, so n is part of the problem being solved and is
kept while k grows; statistics are never shared between workers (Goyal et al. 2017, section 2.3).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class WorkerBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose training statistics are over the images of one worker at a time.

    The parameters, buffers and evaluation are those of `nn.BatchNorm2d`, so that state dicts are
    interchangeable. `sizes` says how the images of the coming pass fall to workers; the statistics
    seen are added up in `sum_mean` and `sum_var` and reach the running ones once per step, through
    RunningStatistics.
    """

    sizes: tuple[int, ...] | None = None
    sum_mean: Tensor
    sum_var: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (images, channels, height, width); in training, images = sum(sizes)."""
        if not self.training:
            return super().forward(input)
        if self.sizes is None or len(self.sizes) == 1:
            return self._normalise(input)
        return torch.cat([self._normalise(group) for group in input.split(self.sizes)])

    def _normalise(self, group: Tensor) -> Tensor:
        # A moving average of momentum 1 that starts at 0 is just this group's statistics.
        mean, var = torch.zeros_like(self.sum_mean), torch.zeros_like(self.sum_var)
        output = F.batch_norm(group, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        self.sum_mean += mean
        self.sum_var += var
        return output


class RunningStatistics:
    """This process's share of all running means and variances of a model.

    The moving average is linear, so it may be kept in parts: after a step every process does

        share <- (1 - momentum) share + momentum (sum over its workers) / (active workers of all)

    having started with hosted / workers of the initial value, and the sum of the shares is what one
    process with all workers would have. So a step needs no communication. Whoever wants the
    statistics, to evaluate or to save, asks for them with `combine`.
    """

    def __init__(self, model: nn.Module, *, hosted: int, workers: int, world_size: int) -> None:
        self.world_size = world_size
        self.layers = [m for m in model.modules() if isinstance(m, WorkerBatchNorm2d)]
        # The paper's running average with momentum 0.9 is PyTorch's momentum 0.1.
        self.momentum = 0.1
        self.fraction = hosted / workers
        self.share = self._read() * self.fraction
        self.seen = torch.zeros_like(self.share)
        parts = iter(
            self.seen.split([n for layer in self.layers for n in 2 * (layer.num_features,)])
        )
        for layer in self.layers:
            layer.sum_mean, layer.sum_var = next(parts), next(parts)

    def start_pass(self, sizes: tuple[int, ...]) -> None:
        """Tell every layer how the images of the coming pass fall to workers."""
        for layer in self.layers:
            layer.sizes = sizes

    def end_step(self, active_workers: int) -> None:
        """Move this process's share, once, by what its workers saw in all passes of the step."""
        self.share.mul_(1 - self.momentum).add_(self.seen, alpha=self.momentum / active_workers)
        self.seen.zero_()
        for layer in self.layers:
            assert layer.num_batches_tracked is not None
            layer.num_batches_tracked += 1

    def combine(self, sum_: Callable[[Tensor], None]) -> None:
        """Write the sum of all shares into the model; `sum_` adds a tensor over the processes."""
        total = self.share.clone()
        sum_(total)
        self._write(total)

    def all_shares(self, sum_: Callable[[Tensor], None], *, rank: int) -> Tensor:
        """Every process's share, shape (world_size, statistics), for a checkpoint."""
        shares = self.share.new_zeros(self.world_size, len(self.share))
        shares[rank] = self.share
        sum_(shares)
        return shares

    def restore(self, shares: Tensor, *, rank: int) -> None:
        """Go on from all_shares of a checkpoint, made by any number of processes.

        As many processes as before take up their own shares, bit by bit; another number divides
        the sum among themselves.
        """
        same = len(shares) == self.world_size
        self.share.copy_(shares[rank] if same else shares.sum(0) * self.fraction)

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
