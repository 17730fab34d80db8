"""Shard of a parameter server: slices of the parameters and of the optimizer state."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy.placement import Slice, place_on_all


class Shard:
    """Parameter slices of one server, with an optimizer that updates them by the recipe's rule.

    The values are views of a model's parameters, and the momentum buffers are views of the state of
    the whole model's optimizer. So a process that has all shards also has an ordinary model and
    optimizer. Each slice has its own step count, where the optimizer has one; a parameter's step
    count is that of its first slice.
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
        self.parameters = optim.trained_parameters(model)
        self.slices = slices
        self.values = [
            flat_view(self.parameters[each.parameter])[each.begin : each.end] for each in slices
        ]
        self.begins = [*accumulate((each.numel() for each in self.parameters), initial=0)]
        """Offset of each parameter in a flat tensor of all of them; the last is its length."""
        settings = optim.shared_settings(asdict(recipe.optim))
        self.optimizer = optim.optimizer_over_groups(self._groups(), norm=norm, **settings)
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.bind_state()

    def apply(self, gradients: Iterable[Tensor], lr: float) -> None:
        """Update the parameter slices once by the optimizer and these flat gradients."""
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = gradient
        optim.set_lr(self.optimizer, lr)
        self.optimizer.step()

    def copy(self) -> list[Tensor]:
        """Return copies of the current values of the parameter slices."""
        return [value.clone() for value in self.values]

    def write(self, values: list[Tensor]) -> None:
        """Overwrite the parameter slices by these values."""
        torch._foreach_copy_(self.values, values)

    def state_buffers(self) -> list[Tensor]:
        """Return flat views of the slices' momentum buffers; none for SGD without momentum."""
        states = [self.optimizer.state[value] for value in self.values]
        return [flat_view(buffer) for state in states for buffer in state.values()]

    def steps(self) -> list[Tensor]:
        """Return the optimizer's step count of each slice; the list is empty for SGD."""
        states = [self.optimizer.state[value] for value in self.values]
        return [state[optim.STEP_KEY] for state in states if optim.STEP_KEY in state]

    def slices_of(self, flat: Tensor) -> list[Tensor]:
        """Return this shard's slices of a flat tensor with all parameters, such as a push."""
        begins = [self.begins[each.parameter] for each in self.slices]
        return [
            flat[begin + each.begin : begin + each.end]
            for begin, each in zip(begins, self.slices, strict=True)
        ]

    def bind_state(self) -> None:
        """Make this optimizer's buffers views of the buffers of the whole model's optimizer."""
        for each, value in zip(self.slices, self.values, strict=True):
            state = self.whole.state.get(self.parameters[each.parameter], {})
            self.optimizer.state[value] = {
                name: flat_view(buffer)[each.begin : each.end]
                for name, buffer in state.items()
                if name != optim.STEP_KEY
            }
            if optim.STEP_KEY in state:
                # A clone for further slices, since each update of a slice adds 1 to its own count.
                step = state[optim.STEP_KEY] if each.begin == 0 else state[optim.STEP_KEY].clone()
                self.optimizer.state[value][optim.STEP_KEY] = step
        _settings(self.whole, self.optimizer)

    def export_settings(self) -> None:
        """Copy the lr and the other group settings to the optimizer of the whole model."""
        _settings(self.optimizer, self.whole)

    def _groups(self) -> list[dict[str, Any]]:
        """Return this server's slices in the parameter groups of the whole model's optimizer."""
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


def step_counts_of(shards: Iterable[Shard]) -> list[Tensor]:
    """Return the optimizer step counts of all slices of these shards.

    They may differ: a server may be ahead of another, within an epoch or after it has lost a push
    that the other has received.
    """
    return [step for shard in shards for step in shard.steps()]


def make_shards(
    model: nn.Module, recipe: Recipe, found_inf: Tensor, norm: Callable[[int], Tensor]
) -> tuple[torch.optim.Optimizer, list[Shard]]:
    """Divide the parameters of a model over a recipe's servers, which apply its server optimizer.

    Returns the optimizer of the whole model and the shard of each server. `norm` is the function
    from the number of a server to the gradient norm by which it clips.
    """
    served = replace(recipe, optim=recipe.server_optim)
    whole = make_model_optimizer(model, served)
    sizes = [parameter.numel() for parameter in optim.trained_parameters(model)]
    slices = place_on_all(sizes, recipe.strategy.servers, recipe.strategy.placement)
    return whole, [
        Shard(model, whole, each, served, found_inf, norm=partial(norm, server))
        for server, each in enumerate(slices)
    ]


def restore_shards(
    whole: torch.optim.Optimizer, shards: Sequence[Shard], state: dict[str, Any]
) -> None:
    """Restore the model's optimizer and the shards that share its state from a checkpoint."""
    load_model_optimizer(whole, state)
    for shard in shards:
        shard.bind_state()
    if saved := state.get("steps"):  # older checkpoints do not have them
        for own, its in zip(step_counts_of(shards), saved, strict=True):
            own.copy_(its)


def server_lr(recipe: Recipe, epoch: int, version: int, read: int) -> float:
    """Return the lr of a server's update, which follows `version` others in this epoch.

    `read` is the version of the parameters that the push was computed with.
    """
    # After a loss of workers another server may have had more pushes than server 0.
    steps = recipe.steps_per_epoch
    lr = recipe.lr(epoch * steps + min(version, steps - 1))
    if recipe.strategy.pushes_deltas:
        lr = recipe.strategy.outer_lr
    return lr / max(1, version - read) if recipe.strategy.staleness_aware else lr


def _settings(from_: torch.optim.Optimizer, to: torch.optim.Optimizer) -> None:
    """Copy the lr and the other group settings from one optimizer to another."""
    for source, target in zip(from_.param_groups, to.param_groups, strict=True):
        target |= {key: value for key, value in source.items() if key != "params"}


def make_model_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Create the whole model's optimizer, with momentum of zeros; it makes no updates itself."""
    whole = optim.make_optimizer(model, **asdict(recipe.optim))
    _lay_out(whole)
    return whole


def load_model_optimizer(whole: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the optimizer state of a checkpoint of any strategy into the model's optimizer.

    Call `Shard.bind_state` of each shard afterwards.
    """
    whole.load_state_dict({name: state[name] for name in ("state", "param_groups")})
    _lay_out(whole)


def _lay_out(whole: torch.optim.Optimizer) -> None:
    """Give an optimizer all its momentum buffers, in the memory layout of the parameters."""
    for group in whole.param_groups:
        for parameter in group["params"]:
            saved = whole.state.get(parameter, {})
            if state := optim.initial_state(whole, parameter) | saved:
                whole.state[parameter] = optim.copy_in_layout(parameter, state)


def flat_view(tensor: Tensor) -> Tensor:
    """Return a one-dimensional view of a dense tensor's elements in the order of memory.

    The order is the same for a parameter, its gradient and its momentum, whatever their memory
    format.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
