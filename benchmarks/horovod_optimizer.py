"""Horovod's DistributedOptimizer, which lsgd does not use; lsgd.comm.horovod has the reason."""

import horovod.torch as hvd
import torch
from torch import nn


def distributed_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, passes: int
) -> torch.optim.Optimizer:
    """Make the optimizer average gradients over processes once per `passes` micro-batches."""
    distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
    return distributed
