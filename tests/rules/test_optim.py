import copy
import io
from dataclasses import asdict, replace

import pytest
import torch
from helpers.composed import compose_recipe
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.recipe import Optim
from lsgd.recipe.overrides import choices
from lsgd.rules import optim
from lsgd.rules.exact_norm import PIECE, exact_norm, norm_pieces
from lsgd.rules.optimizers.lamb import ADAPTED_DECAY

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
RATES = [0.1, 0.1, 0.4, 0.4, 0.04, 0.8, 0.08]
FORMS = [(9, False), (10, False), (10, True)]
ADAM = Optim(name="adam", nesterov=False, weight_decay=0.01, beta2=0.99, eps=1e-6)
ADAMW = Optim(name="adamw", nesterov=False, weight_decay=0.3, beta2=0.99, eps=1e-6)
ADAGRAD = Optim(name="adagrad", momentum=0.0, nesterov=False, weight_decay=0.01, eps=1e-10)
SGD = Optim(weight_decay=0.01)
LAMB = Optim(
    name="lamb", nesterov=False, weight_decay=0.3, beta2=0.99, eps=1e-6, bias_correction=False,
    decay_bias=False,
)  # fmt: skip
AKIBA = Optim(name="rmsprop_warmup", nesterov=False, weight_decay=0.01, beta2=0.99, beta_center=0)
LARS = Optim(name="lars", weight_decay=0.01, eps=0.0, trust=0.02, decay_bias=False)
ALL = [
    *(replace(SGD, equation=e, momentum_correction=c) for e, c in FORMS), LARS,
    *(replace(each, clip_norm=1.5) for each in (SGD, ADAM, ADAGRAD, LARS, ADAMW)),
    replace(LAMB, clip_norm=1.5, bias_correction=True, adapts="decayed", decay_bias=True), AKIBA,
    *(compose_recipe("recipe=digits", f"optim={name}").optim for name in choices("optim")),
]  # fmt: skip
"""Every optimizer of conf/optim, other forms of some, and those that clip."""


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)
    ).double()


def make(model: nn.Module, settings: Optim) -> torch.optim.Optimizer:
    """The optimizer of these settings, which clips by the norm of the gradients it has."""

    def norm() -> Tensor:
        return torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))

    return optim.make_optimizer(model, norm=norm, **asdict(settings))


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, number: int) -> None:
    """A step at this lr, on gradients that depend on the number of the step alone."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    optim.set_lr(optimizer, lr)
    optimizer.step()


def test_a_decoupled_decay_is_a_share_of_the_lr_and_skipped_with_its_update() -> None:
    """By the numbers of composer's DecoupledSGDW, whose first lr is the full one, 0.2."""
    model = nn.Linear(1, 1).double()
    settings = Optim(momentum=0.875, nesterov=False, weight_decay=0.01, decay="decoupled")
    optimizer = optim.make_optimizer(model, full_lr=0.2, **asdict(settings))
    optim.create_state(optimizer)
    nn.init.ones_(model.weight)
    found = []
    for gradient, lr, overflow in ((0.5, 0.1, 0), (7.0, 0.2, 1), (-0.25, 0.2, 0), (0.5, 0.1, 0)):
        optimizer.found_inf = torch.tensor(float(overflow))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optim.set_lr(optimizer, lr)
        optimizer.step()
        found.append(model.weight.item())
    assert found == pytest.approx([0.945, 0.945, 0.89805, 0.8271535], rel=1e-12)


def test_norms_may_decay_too() -> None:
    groups = optim.parameter_groups(small_net(), 0.01, decay_norm=True)
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.01, 6),
        (0, 0),
    ]


State = list[Tensor]
"""What a rule keeps of a parameter."""


def nesterov(w: Tensor, state: State, g: Tensor, lr: float, *_: float) -> Tensor:
    """Equation (9) as PyTorch's plain loop has it: u <- m u + g, and a look ahead."""
    state[0] = 0.9 * state[0] + g
    return w - lr * (g + 0.9 * state[0])


def equation_9(w: Tensor, state: State, g: Tensor, lr: float, *_: float) -> Tensor:
    """u <- m u + g, w <- w - lr u."""
    state[0] = 0.9 * state[0] + g
    return w - lr * state[0]


def equation_10(w: Tensor, state: State, g: Tensor, lr: float, *_: float) -> Tensor:
    """v <- m v + lr g, w <- w - v."""
    state[0] = 0.9 * state[0] + lr * g
    return w - state[0]


def corrected(w: Tensor, state: State, g: Tensor, lr: float, last: float, _: int) -> Tensor:
    """Equation (10) in which m is multiplied by new lr / old lr."""
    state[0] = 0.9 * (lr / last) * state[0] + lr * g
    return w - state[0]


def adam(w: Tensor, state: State, g: Tensor, lr: float, _: float, step: int) -> Tensor:
    """Kingma and Ba 2015, algorithm 1, with beta1 = 0.9."""
    state[0] = 0.9 * state[0] + 0.1 * g
    state[1] = ADAM.beta2 * state[1] + (1 - ADAM.beta2) * g**2
    mean, square = state[0] / (1 - 0.9**step), state[1] / (1 - ADAM.beta2**step)
    return w - lr * mean / (square.sqrt() + ADAM.eps)


def adagrad(w: Tensor, state: State, g: Tensor, lr: float, *_: float) -> Tensor:
    """Duchi et al. 2011, with a diagonal matrix."""
    state[0] = state[0] + g**2
    return w - lr * g / (state[0].sqrt() + ADAGRAD.eps)


HEAVY_BALL = replace(SGD, nesterov=False, equation=10)
LOOPS = {
    "nesterov": (SGD, nesterov),
    "equation 9": (replace(SGD, nesterov=False), equation_9),
    "equation 10": (HEAVY_BALL, equation_10),
    "corrected": (replace(HEAVY_BALL, momentum_correction=True), corrected),
    "adam": (ADAM, adam),
    "adagrad": (ADAGRAD, adagrad),
    "adamw": (ADAMW, adam),  # whose decay is not in the gradient
}


@pytest.mark.parametrize("clip", [None, 10.0])
@pytest.mark.parametrize("name", LOOPS)
def test_a_plain_loop_comes_to_the_same(name: str, clip: float | None) -> None:
    """The gradient of all parameters is clipped by its one norm, and then decay is added.

    AdamW multiplies the weights by 1 - lr decay instead."""
    (settings, rule), model = LOOPS[name], small_net()
    weights = [p.detach().clone() for p in model.parameters()]
    states = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    decays = [settings.weight_decay * decays for decays in (1, 1, 0, 0, 1, 1)]
    optimizer, norms, last = make(model, replace(settings, clip_norm=clip)), [], RATES[0]
    for number, lr in enumerate(RATES):
        take_step(model, optimizer, lr, number)
        generator = torch.Generator().manual_seed(number)
        gradients = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
        norms.append(sum((g**2).sum() for g in gradients).sqrt())
        factor = 1 if clip is None else min(1, clip / norms[-1])
        for i, g in enumerate(gradients):
            g = factor * g
            if settings.name == "adamw":
                weights[i] = weights[i] - lr * decays[i] * weights[i]
            else:
                g = g + decays[i] * weights[i]
            weights[i] = rule(weights[i], states[i], g, lr, last, number + 1)
        last = lr
    assert min(norms) < 10 < max(norms)  # so that some are clipped
    torch.testing.assert_close([p.detach() for p in model.parameters()], weights, **CLOSE)


def test_adamw_is_that_of_torch() -> None:
    """Its plain loop over tensors; and norms and biases do not decay, as in recipes for images."""
    ours, theirs = small_net(), small_net()
    settings = compose_recipe("recipe=digits", "optim=adamw").optim
    weights = [theirs[0].weight, theirs[3].weight]
    others = [theirs[0].bias, *theirs[1].parameters(), theirs[3].bias]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.999), foreach=False, fused=False)
    optimizer = make(ours, settings)
    for number, lr in enumerate(RATES):
        take_step(ours, optimizer, lr, number)
        take_step(theirs, plain, lr, number)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **CLOSE)


@given(
    norm=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 7.0, 1e30]),
    limit=st.floats(1e-6, 1e6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_clipped_gradient_has_at_most_the_norm(
    norm: float, limit: float, dtype: torch.dtype
) -> None:
    """And its direction; one that is shorter stays bit by bit, 0 too."""
    direction = torch.tensor([0.6, -0.8, 0.0], dtype=dtype)
    value = direction.new_zeros(3).requires_grad_()
    plain = Optim(momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=limit)
    settings = optim.shared_settings(asdict(plain))
    gradient = direction * norm
    value.grad = gradient.clone()
    groups = [{"params": [value], "weight_decay": 0.0}, {"params": [], "weight_decay": 0.0}]
    optimizer = optim.optimizer_over_groups(
        groups, norm=lambda: torch.tensor(norm, dtype=dtype), **settings
    )
    optim.set_lr(optimizer, 1.0)
    optimizer.step()
    expected = gradient if norm <= limit else direction * limit
    close = {"rtol": 0, "atol": 0} if norm <= limit else {"rtol": 1e-6, "atol": 0}
    torch.testing.assert_close(-value.detach(), expected, **close)


def test_adams_beta1_is_the_momentum() -> None:
    """Without either mean an update is lr times the sign of its gradient."""
    value = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    settings = optim.shared_settings(asdict(replace(ADAM, momentum=0.0, beta2=0.0, eps=1e-12)))
    optimizer = optim.optimizer_over_groups([{"params": [value], "weight_decay": 0.0}], **settings)
    optim.set_lr(optimizer, 0.25)
    for gradient, expected in ((3.0, -0.25), (-5.0, 0.0), (1.0, -0.25)):
        value.grad = torch.full_like(value, gradient)
        optimizer.step()
        assert value.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("settings", [SGD, ADAM, ADAGRAD])
def test_nothing_is_clipped_and_nothing_computed_without_a_limit(settings: Optim) -> None:
    model = small_net()
    optimizer = optim.make_optimizer(model, norm=pytest.fail, **asdict(settings))
    take_step(model, optimizer, 0.1, 0)
    assert not optimizer._optimizer_step_pre_hooks


def test_where_torch_has_no_fused_adagrad_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: torch.optim.Optimizer) -> None:
        raise RuntimeError("`fused=True` requires …")

    monkeypatch.setattr(torch.optim.Adagrad, "step", step)
    with pytest.raises(
        UsageError, match=r"no fused Adagrad on cpu .*requires ….*; write device=cpu"
    ):
        make(small_net(), ADAGRAD)
    make(small_net(), ADAM)


def test_every_parameter_is_in_one_group() -> None:
    """Also those that a module other than conv, fc and BN may have."""
    model = small_net()
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    decayed, kept = (group["params"] for group in optim.parameter_groups(model, 0.01))
    assert len({*decayed, *kept}) == len(decayed) + len(kept) == 7
    assert {*kept} == {*model[1].parameters()}


def test_a_parameter_of_several_layers_is_updated_once() -> None:
    """As the decoder of a language model that is its embedding; its first name decides."""
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3), nn.LayerNorm(3), nn.LayerNorm(3))
    model[1].weight, model[3].weight = model[0].weight, model[2].weight
    groups = optim.parameter_groups(model, weight_decay=0.1)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))


@pytest.mark.parametrize("shape", [(5_000_000,), (1, 5_000_000), (50, 100_000), (2000, 2500)])
def test_the_norm_of_millions_of_numbers_is_exact(shape: tuple[int, ...]) -> None:
    """In float32 on a CPU, whose own sum of 5 million squares is 1e-4 too small."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pieces = norm_pieces(numbers)
    assert sum(piece.numel() for piece in pieces) == numbers.numel()
    assert max(piece.numel() for piece in pieces) <= PIECE
    torch.testing.assert_close(
        exact_norm(numbers).double(), numbers.double().norm(), rtol=1e-6, atol=0
    )


def test_biases_may_be_left_without_decay() -> None:
    model = small_net()
    decayed, kept = (each["params"] for each in optim.parameter_groups(model, 0.01, False))
    assert {*decayed} == {model[0].weight, model[3].weight}
    assert {*kept} == {model[0].bias, *model[1].parameters(), model[3].bias}


@pytest.mark.parametrize("settings", ALL)
def test_the_last_layer_is_updated_at_its_own_lr(settings: Optim) -> None:
    """And all other layers as without one, bit by bit, also where the lr changes."""
    models = ours, body, head = [small_net() for _ in range(3)]
    ours.lr_factors = {"3.weight": 4.0, "3.bias": 4.0}
    optimizers = [
        make(model, replace(settings, head_lr=head_lr))
        for model, head_lr in zip(models, (0.4, None, None), strict=True)
    ]
    for number, lr in enumerate(RATES):
        for model, optimizer, factor in zip(models, optimizers, (1, 1, 4), strict=True):
            take_step(model, optimizer, factor * lr, number)
    for name, value in ours.state_dict().items():
        expected = (head if name.startswith("3.") else body).state_dict()[name]
        assert torch.equal(value, expected), name


@pytest.mark.parametrize("settings", ALL)
def test_found_inf_leaves_everything_as_it_is(settings: Optim) -> None:
    """Parameters and state, bit by bit, even though the gradients are not numbers.

    A momentum correction is made all the same.
    """
    model = small_net()
    optimizer = make(model, settings)
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
    if settings.momentum_correction:
        for state in before[1].values():
            state["velocity"] *= 2
    torch.testing.assert_close(
        (model.state_dict(), optimizer.state_dict()["state"]), before, rtol=0, atol=0
    )


@pytest.mark.parametrize("skipped", [0, 3])
@pytest.mark.parametrize("settings", ALL)
def test_a_skipped_update_is_as_if_it_had_not_been(settings: Optim, skipped: int) -> None:
    """The first one too, before which torch has no state; and the lr goes on in it."""
    model, other = small_net(), small_net()
    optimizer, without = (make(each, settings) for each in (model, other))
    optim.create_state(optimizer)
    optimizer.found_inf = torch.zeros(())
    for number, lr in enumerate(RATES):
        optimizer.found_inf.fill_(number == skipped)
        take_step(model, optimizer, lr, number)
        if number != skipped:
            take_step(other, without, lr, number)
    torch.testing.assert_close(model.state_dict(), other.state_dict(), **CLOSE)


@pytest.mark.parametrize(
    "settings",
    [
        *(replace(LARS, equation=equation) for equation in (9, 10)),
        replace(LARS, equation=10, momentum_correction=True, nesterov=True),
        *(replace(LAMB, bias_correction=corrected) for corrected in (False, True)),
        replace(AKIBA, weight_decay=0.1),
    ],
)
def test_no_tensor_is_made_as_large_as_the_model(settings: Optim) -> None:
    """Norms are numbers; gradient, momentum and direction are computed where they are.

    Of a tensor that LARS or LAMB adapts, and of one that they leave alone.
    """
    weights = [nn.Parameter(torch.ones(1000, 1000)) for _ in range(2)]
    adapted = {ADAPTED_DECAY: 0.1} if settings.name in ("lars", "lamb") else {}
    groups = [
        {"params": weights[:1], "weight_decay": 0.0, **adapted},
        {"params": weights[1:], "weight_decay": settings.weight_decay},
    ]
    optimizer = optim.optimizer_over_groups(groups, **optim.shared_settings(asdict(settings)))
    optim.create_state(optimizer)
    optimizer.found_inf = torch.zeros(())
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optim.set_lr(optimizer, 0.1)
    # torch 2.11 warns without acc_events that it forgets earlier cycles, of which there are none.
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiled:
        optimizer.step()
    largest = max(abs(event.self_cpu_memory_usage) for event in profiled.events())
    assert largest < weights[0].nbytes / 100


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize("settings", ALL)
def test_a_saved_optimizer_goes_on_bit_equal(settings: Optim, stop: int) -> None:
    """Through a file that is read without running code, wherever the lr stands."""
    straight, resumed = small_net(), small_net()
    optimizer, other = (make(model, settings) for model in (straight, resumed))
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
