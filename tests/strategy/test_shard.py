"""The slices of the parameter servers make the update of the whole model."""

from typing import Any

import pytest
import torch
from helpers.base_recipe import BASE, with_fields
from helpers.differences import largest_difference
from torch import Tensor, nn

from lsgd.models import make_network
from lsgd.recipe import Optim, Recipe
from lsgd.rules import optim
from lsgd.strategy.placement import PLACEMENTS, Slice, place
from lsgd.strategy.shard import (
    Shard,
    flat_view,
    load_model_optimizer,
    make_model_optimizer,
    restore_shards,
    step_counts_of,
)

SMALL = with_fields(
    BASE, model__name="small_resnet", precision="float64", optim__weight_decay=0.1, seed=3
)


ADAM = {"optim": Optim(name="adam", nesterov=False, weight_decay=0.1, eps=1e-4)}


def gradients(model: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [
        torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        for p in model.parameters()
    ]


def make_shards(
    model: nn.Module, recipe: Recipe, servers: int, placement: str
) -> tuple[torch.optim.Optimizer, list[Shard]]:
    whole = make_model_optimizer(model, recipe)
    slices = place([p.numel() for p in model.parameters()], servers, placement)
    found_inf = torch.zeros(())
    return whole, [Shard(model, whole, each, recipe, found_inf, given_norm) for each in slices]


def given_norm() -> Tensor:
    """What is taken for the norm of the whole gradient, of which no shard knows all."""
    return torch.tensor(4.0, dtype=torch.float64)


def apply(shards: list[Shard], gradients: list[Tensor], lr: float) -> None:
    flat = torch.cat([flat_view(gradient) for gradient in gradients])
    for shard in shards:
        shard.apply(shard.slices_of(flat), lr)


def plain(recipe: Recipe, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_network(recipe)
    optimizer = optim.make_optimizer(model, norm=given_norm, **vars(recipe.optim))
    for step in range(steps):
        for parameter, gradient in zip(model.parameters(), gradients(model, step), strict=True):
            parameter.grad = gradient
        optim.set_lr(optimizer, 0.1 / (1 + step))
        optimizer.step()
    return model, optimizer


SERVERS = (1, 3, 40)
UPDATES: list[dict[str, Any]] = [
    {},
    {"channels_last": True},
    {"optim__momentum": 0.0, "optim__nesterov": False},
    {"optim__equation": 10, "optim__momentum_correction": True},
    ADAM,
    ADAM | {"channels_last": True},
    {"optim": Optim(name="adagrad", momentum=0.0, nesterov=False)},
    {"optim__clip_norm": 1.0},
    {"optim": Optim(name="adamw", nesterov=False, weight_decay=0.3, eps=1e-4)},
]


@pytest.mark.parametrize(
    ("fields", "servers", "placement"),
    [
        # Of fields, servers and placement each pair, and of the first fields each triple.
        (fields, servers, placement)
        for i, fields in enumerate(UPDATES)
        for j, servers in enumerate(SERVERS)
        for k, placement in enumerate(PLACEMENTS)
        if i == 0 or (i + j + k) % 3 == 0
    ],
)
def test_all_shards_together_make_the_update(
    fields: dict[str, Any], servers: int, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsgd.strategy.placement.SPLIT", 1000)
    recipe = with_fields(SMALL, **fields)
    model = make_network(recipe)
    whole, shards = make_shards(model, recipe, servers, placement)
    for step in range(2):
        apply(shards, gradients(model, step), 0.1 / (1 + step))
    shards[0].export_settings()
    # Another number of servers goes on from what they have saved.
    saved = whole.state_dict()
    whole, shards = make_shards(model, recipe, servers + 1, placement)
    load_model_optimizer(whole, saved)
    for shard in shards:
        shard.bind_state()
    for step in range(2, 4):
        apply(shards, gradients(model, step), 0.1 / (1 + step))
    shards[0].export_settings()
    expected, optimizer = plain(recipe, 4)
    assert largest_difference(model.state_dict(), expected.state_dict()) < 1e-14
    assert largest_difference(whole.state_dict(), optimizer.state_dict()) < 1e-14


def test_what_all_reduce_has_saved_before_a_step_is_taken_up() -> None:
    model, optimizer = plain(SMALL, 0)
    whole = make_model_optimizer(model, SMALL)
    load_model_optimizer(whole, optimizer.state_dict())
    assert all((state["momentum_buffer"] == 0).all() for state in whole.state.values())
    assert len(whole.state) == len(list(model.parameters()))


def test_the_updates_of_adam_count_from_what_is_taken_up() -> None:
    recipe = with_fields(SMALL, **ADAM)
    for steps in (0, 3):
        model, optimizer = plain(recipe, steps)
        whole, [shard] = make_shards(model, recipe, 1, "greedy")
        load_model_optimizer(whole, optimizer.state_dict())
        shard.bind_state()
        assert {step.item() for step in shard.steps()} == {steps}
        apply([shard], gradients(model, steps), 0.1)
        assert {state["step"].item() for state in whole.state.values()} == {steps + 1}


def test_a_slice_whose_server_is_ahead_goes_on_from_there() -> None:
    """The parameter's own state has the number of its first slice alone."""
    recipe = with_fields(SMALL, **ADAM)
    states = []
    for restored in (False, True):
        model = make_network(recipe)
        whole = make_model_optimizer(model, recipe)
        halves = [
            [Slice(0, 0, 10)],
            [Slice(0, 10, next(model.parameters()).numel())],
        ]
        shards = [Shard(model, whole, each, recipe, torch.zeros(()), given_norm) for each in halves]
        if restored:
            restore_shards(whole, shards, states[0])
        else:
            for shard, times in zip(shards, (2, 5), strict=True):
                for _ in range(times):
                    shard.apply([torch.ones_like(shard.values[0])], 0.1)
        states.append(whole.state_dict() | {"steps": [s.clone() for s in step_counts_of(shards)]})
    assert [step.item() for step in states[1]["steps"]] == [2, 5]


def test_a_copy_stays_as_it_is_and_is_written_back() -> None:
    model = make_network(SMALL)
    _, [shard] = make_shards(model, SMALL, 1, "greedy")
    before = [p.detach().clone() for p in model.parameters()]
    copy = shard.copy()
    apply([shard], gradients(model, 0), 0.1)
    assert largest_difference([p.detach() for p in model.parameters()], before) > 0.01
    shard.write(copy)
    assert largest_difference([p.detach() for p in model.parameters()], before) == 0


@pytest.mark.parametrize("fields", [{}, ADAM])
def test_no_update_once_a_gradient_was_not_finite(fields: dict[str, Any]) -> None:
    recipe = with_fields(SMALL, **fields)
    model = make_network(recipe)
    whole = make_model_optimizer(model, recipe)
    [slices] = place([p.numel() for p in model.parameters()], 1, "greedy")
    shard = Shard(model, whole, slices, recipe, torch.ones(()), given_norm)
    before = shard.copy()
    apply([shard], gradients(model, 0), 0.1)
    assert largest_difference(shard.copy(), before) == 0
    assert all(not tensor.any() for tensor in shard.state_buffers())
