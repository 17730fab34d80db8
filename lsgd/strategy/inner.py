"""The optimizer of workers that make updates of their own, and what each of them has of it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lsgd.comm import Comm, sum_
from lsgd.rules import optim


class OwnMomenta:
    """The momentum of each hosted worker, or what else an optimizer has of the parameters, which
    one optimizer takes in turn."""

    def __init__(self, optimizer: torch.optim.Optimizer, hosted: range) -> None:
        self.optimizer, self.hosted = optimizer, hosted
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        states = optimizer.state
        for parameter in self.parameters:
            states[parameter] = optim.first_state(optimizer, parameter) | states[parameter]
        self.first = states
        self.states = [_copy(states) for _ in hosted]

    def take(self, worker: int) -> None:
        """Let the next updates of the optimizer be those of this worker."""
        self.optimizer.state = self.states[worker - self.hosted.start]

    def gathered(self, comm: Comm, worker: int, beside: Sequence[Tensor] = ()) -> dict[str, Any]:
        """What a worker has, with the tensors that its process has `beside`, for a checkpoint.

        All processes call it for each worker, with tensors of the same shapes. Process 0 gets them
        on its host, where the workers of a large run have room; the others get a number, which is
        NaN if any of them is not finite.
        """
        hosted = worker in self.hosted
        own = self.states[worker - self.hosted.start] if hosted else self.first
        states = [own[parameter] for parameter in self.parameters]
        tensors = [*beside, *(value for state in states for value in state.values())]
        empty = self.parameters[0].new_empty(0)
        flat = torch.cat([empty, *(tensor.detach().flatten() for tensor in tensors)])
        if not hosted:
            flat.zero_()
        sum_(comm, flat)
        if comm.rank:
            return {"doubt": flat.mul_(0).sum()}
        parts = iter(flat.cpu().split([tensor.numel() for tensor in tensors]))
        whole = iter([next(parts).view(t.shape).to(t.dtype) for t in tensors])
        return {
            "copy": [next(whole) for _ in beside],
            "state": {i: {key: next(whole) for key in state} for i, state in enumerate(states)},
        }

    def restore(self, worker: int, saved: dict[str, Any]) -> None:
        """Take up what a hosted worker had."""
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        self.states[worker - self.hosted.start] = _copy(self.optimizer.state)


def _copy(states: "defaultdict[Tensor, Any]") -> "defaultdict[Tensor, Any]":
    """A copy of the states of parameters, each of which lies in memory as its parameter does."""
    return defaultdict(dict, {each: optim.laid_out(each, state) for each, state in states.items()})


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters in a flat tensor, in which they lie as in memory."""
    parts, begin = [], flat.storage_offset()
    for parameter in parameters:
        parts.append(flat.as_strided(parameter.size(), parameter.stride(), begin))
        begin += parameter.numel()
    return parts
