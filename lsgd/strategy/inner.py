"""Optimizer state of workers that make local updates."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lsgd.comm import Comm, all_reduce_
from lsgd.rules import optim


class InnerOptimizerStates:
    """Optimizer states of this process's workers, which share one optimizer in turn."""

    def __init__(self, optimizer: torch.optim.Optimizer, hosted: range) -> None:
        self.optimizer, self.hosted = optimizer, hosted
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        states = optimizer.state
        for parameter in self.parameters:
            states[parameter] = optim.initial_state(optimizer, parameter) | states[parameter]
        self.first = states
        self.states = [_copy(states) for _ in hosted]

    def activate(self, worker: int) -> None:
        """Make this worker's state the current state of the shared optimizer."""
        self.optimizer.state = self.states[worker - self.hosted.start]

    def gather_state(
        self, comm: Comm, worker: int, extra_tensors: Sequence[Tensor] = ()
    ) -> dict[str, Any]:
        """Gather a worker's optimizer state and more tensors on process 0, for a checkpoint.

        All processes call it for each worker, with tensors of the same shapes; only those of the
        worker's process count. Process 0 receives them in host memory, which has room for the
        workers of a large run; the other processes get one number, which is NaN if any of the
        values is not finite.
        """
        hosted = worker in self.hosted
        own = self.states[worker - self.hosted.start] if hosted else self.first
        states = [own[parameter] for parameter in self.parameters]
        tensors = [*extra_tensors, *(value for state in states for value in state.values())]
        empty = self.parameters[0].new_empty(0)
        flat = torch.cat([empty, *(tensor.detach().flatten() for tensor in tensors)])
        if not hosted:
            flat.zero_()
        all_reduce_(comm, flat)
        if comm.rank:
            return {"doubt": flat.mul_(0).sum()}
        parts = iter(flat.cpu().split([tensor.numel() for tensor in tensors]))
        whole = iter([next(parts).view(t.shape).to(t.dtype) for t in tensors])
        return {
            "copy": [next(whole) for _ in extra_tensors],
            "state": {i: {key: next(whole) for key in state} for i, state in enumerate(states)},
        }

    def restore(self, worker: int, saved: dict[str, Any]) -> None:
        """Restore the optimizer state of one of this process's workers from a checkpoint."""
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        self.states[worker - self.hosted.start] = _copy(self.optimizer.state)


def _copy(states: "defaultdict[Tensor, Any]") -> "defaultdict[Tensor, Any]":
    """Copy optimizer states, giving each tensor the strides of its parameter."""
    return defaultdict(
        dict, {each: optim.copy_in_layout(each, state) for each, state in states.items()}
    )


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a flat tensor that have the shapes and strides of the parameters."""
    parts, begin = [], flat.storage_offset()
    for parameter in parameters:
        parts.append(flat.as_strided(parameter.size(), parameter.stride(), begin))
        begin += parameter.numel()
    return parts
