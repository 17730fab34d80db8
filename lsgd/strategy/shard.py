"""What a parameter server has: slices of the parameters, and of what the optimizer has of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy.placement import Slice


class Shard:
    """The slices of one server, which makes the update of a recipe on them.

    Its values lie in the parameters of a model, and its momentum in the state of the optimizer of
    the whole model, so that a process which has all shards has a model and an optimizer like any.
    The number of updates, where the optimizer counts them, each slice has for itself; that of the
    slice with which a parameter begins is the parameter's.
    """

    def __init__(
        self,
        model: nn.Module,
        whole: torch.optim.Optimizer,
        slices: Sequence[Slice],
        recipe: Recipe,
        found_inf: Tensor,
        norm: Callable[[], Tensor],
    ) -> None:
        self.whole = whole
        self.parameters = list(model.parameters())
        self.slices = slices
        self.values = [
            in_memory(self.parameters[each.parameter])[each.begin : each.end] for each in slices
        ]
        settings = optim.shared_settings(asdict(recipe.optim))
        self.optimizer = optim.over_groups(self._groups(), norm=norm, **settings)
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.link()

    def apply(self, gradients: Iterable[Tensor], lr: float) -> None:
        """Make one update by the gradients of the slices, each of one dimension."""
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = gradient
        optim.set_lr(self.optimizer, lr)
        self.optimizer.step()

    def copy(self) -> list[Tensor]:
        """The values as they are now."""
        return [value.clone() for value in self.values]

    def write(self, values: list[Tensor]) -> None:
        """Replace the values."""
        torch._foreach_copy_(self.values, values)

    def momenta(self) -> list[Tensor]:
        """All that the optimizer has of the slices as it lies there, each in one dimension; SGD
        without momentum has nothing."""
        states = [self.optimizer.state[value] for value in self.values]
        return [in_memory(buffer) for state in states for buffer in state.values()]

    def steps(self) -> list[Tensor]:
        """The number of updates of each slice as the optimizer counts them; SGD does not."""
        states = [self.optimizer.state[value] for value in self.values]
        return [state[optim.STEP] for state in states if optim.STEP in state]

    def cut(self, flat: Tensor, begins: Sequence[int]) -> list[Tensor]:
        """The slices of something that lies in one dimension, of each parameter from its begin."""
        return [
            flat[begins[each.parameter] + each.begin : begins[each.parameter] + each.end]
            for each in self.slices
        ]

    def link(self) -> None:
        """Use the momentum that the optimizer of the whole model has now."""
        for each, value in zip(self.slices, self.values, strict=True):
            state = self.whole.state.get(self.parameters[each.parameter], {})
            self.optimizer.state[value] = {
                name: in_memory(buffer)[each.begin : each.end]
                for name, buffer in state.items()
                if name != optim.STEP
            }
            if optim.STEP in state:
                # Not one for all slices, since each update of a slice adds 1 to it.
                step = state[optim.STEP] if each.begin == 0 else state[optim.STEP].clone()
                self.optimizer.state[value][optim.STEP] = step
        _settings(self.whole, self.optimizer)

    def report(self) -> None:
        """Let the optimizer of the whole model know the lr, and what else its groups have."""
        _settings(self.optimizer, self.whole)

    def _groups(self) -> list[dict[str, Any]]:
        """The slices, grouped as the parameters are that they are of."""
        groups = []
        for group in self.whole.param_groups:
            members = {id(parameter) for parameter in group["params"]}
            values = [
                value
                for value, each in zip(self.values, self.slices, strict=True)
                if id(self.parameters[each.parameter]) in members
            ]
            groups.append({"params": values, "weight_decay": group["weight_decay"]})
        return groups


def _settings(from_: torch.optim.Optimizer, to: torch.optim.Optimizer) -> None:
    for source, target in zip(from_.param_groups, to.param_groups, strict=True):
        target |= {key: value for key, value in source.items() if key != "params"}


def make_whole(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of the whole model, whose momentum is there from the start, and 0.

    It makes no update.
    """
    whole = optim.make_optimizer(model, **asdict(recipe.optim))
    _lay_out(whole)
    return whole


def load_whole(whole: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take up a state that any strategy has saved; the shards have to be linked anew."""
    whole.load_state_dict({name: state[name] for name in ("state", "param_groups")})
    _lay_out(whole)


def _lay_out(whole: torch.optim.Optimizer) -> None:
    """Let every momentum be there, and lie in memory as its parameter does."""
    for group in whole.param_groups:
        for parameter in group["params"]:
            saved = whole.state.get(parameter, {})
            if state := optim.first_state(whole, parameter) | saved:
                whole.state[parameter] = optim.laid_out(parameter, state)


def in_memory(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in one dimension, as they lie in memory: no copy, and the same
    for a parameter, its gradient and its momentum, whatever their layout."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
