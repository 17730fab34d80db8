"""Horovod's own way to train in parallel, which lsgd does not use; lsgd.comm.horovod says why."""

import horovod.torch as hvd
import torch
from torch import nn


def distributed_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, passes: int
) -> torch.optim.Optimizer:
    """The optimizer, which now averages gradients over the processes, once in `passes` passes."""
    distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
    return distributed
