import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lsgd.rules import optim

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
RATES = [0.1, 0.1, 0.4, 0.4, 0.04, 0.8, 0.08]
FORMS = [(9, False), (10, False), (10, True)]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)
    ).double()


def sgd(
    model: nn.Module, equation: int = 9, correction: bool = False, *, nesterov: bool = True
) -> torch.optim.Optimizer:
    return optim.make_optimizer(
        model,
        momentum=0.9,
        nesterov=nesterov,
        weight_decay=0.01,
        equation=equation,
        momentum_correction=correction,
    )


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, number: int) -> None:
    """A step at this lr, on gradients that depend on the number of the step alone."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    optim.set_lr(optimizer, lr)
    optimizer.step()


def by_hand(
    rule: Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]],
) -> list[Tensor]:
    """The parameters after steps at RATES; rule(w, buffer, gradient, lr, last lr) is an update."""
    model = small_net()
    parameters, last = list(model.parameters()), RATES[0]
    buffers = [torch.zeros_like(p) for p in parameters]
    decays = [0.01, 0.01, 0.0, 0.0, 0.01, 0.01]
    for number, lr in enumerate(RATES):
        generator = torch.Generator().manual_seed(number)
        for i, (parameter, decay) in enumerate(zip(parameters, decays, strict=True)):
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gradient += decay * parameter.detach()
            parameter.data, buffers[i] = rule(parameter.data, buffers[i], gradient, lr, last)
        last = lr
    return parameters


@pytest.mark.parametrize("nesterov", [True, False])
def test_equation_9(nesterov: bool) -> None:
    """u <- m u + g, w <- w - lr u, the same as PyTorch's plain loop; decay is in g."""

    def rule(w: Tensor, u: Tensor, g: Tensor, lr: float, _: float) -> tuple[Tensor, Tensor]:
        u = 0.9 * u + g
        return w - lr * (g + 0.9 * u if nesterov else u), u

    model = small_net()
    optimizer = sgd(model, nesterov=nesterov)
    for number, lr in enumerate(RATES):
        take_step(model, optimizer, lr, number)
    torch.testing.assert_close(list(model.parameters()), by_hand(rule), **CLOSE)


@pytest.mark.parametrize("correction", [True, False])
def test_equation_10(correction: bool) -> None:
    """v <- m v + lr g, w <- w - v; corrected, m is multiplied by new lr / old lr."""

    def rule(w: Tensor, v: Tensor, g: Tensor, lr: float, last: float) -> tuple[Tensor, Tensor]:
        v = 0.9 * (lr / last if correction else 1) * v + lr * g
        return w - v, v

    model = small_net()
    optimizer = sgd(model, 10, correction, nesterov=False)
    for number, lr in enumerate(RATES):
        take_step(model, optimizer, lr, number)
    torch.testing.assert_close(list(model.parameters()), by_hand(rule), **CLOSE)


def test_every_parameter_is_in_one_group() -> None:
    """Also those that a module other than conv, fc and BN may have."""
    model = small_net()
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    decayed, kept = (group["params"] for group in optim.parameter_groups(model, 0.01))
    assert len({*decayed, *kept}) == len(decayed) + len(kept) == 7
    assert {*kept} == {*model[1].parameters()}


@pytest.mark.parametrize(("equation", "correction"), FORMS)
def test_found_inf_leaves_everything_as_it_is(equation: int, correction: bool) -> None:
    """Parameters and momentum, bit by bit, even though the gradients are not numbers."""
    model = small_net()
    optimizer = sgd(model, equation, correction)
    found_inf = torch.zeros(())
    optimizer.found_inf = found_inf
    take_step(model, optimizer, 0.1, 0)
    moved = not torch.equal(model[0].weight, small_net()[0].weight)
    assert moved
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    found_inf.fill_(1)
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    optim.set_lr(optimizer, 0.2)
    optimizer.step()
    torch.testing.assert_close(
        (model.state_dict(), optimizer.state_dict()["state"]), before, rtol=0, atol=0
    )


@pytest.mark.parametrize("stop", [0, 2, 6])
@pytest.mark.parametrize(("equation", "correction"), FORMS)
def test_a_saved_optimizer_goes_on_bit_equal(equation: int, correction: bool, stop: int) -> None:
    """Through a file that is read without running code, wherever the lr stands."""
    straight, resumed = small_net(), small_net()
    optimizer, other = (sgd(model, equation, correction) for model in (straight, resumed))
    for number, lr in enumerate(RATES):
        if number == stop:
            file = io.BytesIO()
            torch.save((straight.state_dict(), optimizer.state_dict()), file)
            file.seek(0)
            model_state, optimizer_state = torch.load(file, weights_only=True)
            resumed.load_state_dict(model_state)
            other.load_state_dict(optimizer_state)
        take_step(straight, optimizer, lr, number)
        if number >= stop:
            take_step(resumed, other, lr, number)
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)


def test_the_lr_is_set_for_all_groups() -> None:
    optimizer = sgd(small_net())
    optim.set_lr(optimizer, 0.3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]
