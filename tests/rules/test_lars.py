"""LARS against its formula in numbers, in both places of the lr, and what it leaves alone."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch
from helpers.layerwise import over, parameter, step
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lsgd.models import make_model
from lsgd.recipe import Optim
from lsgd.rules import optim
from lsgd.rules.optimizers.lamb import ADAPTED_DECAY

LARS = Optim(name="lars", nesterov=False, equation=10, weight_decay=0.1, eps=0.0, decay_bias=False)
GRADIENTS, LRS = ((0.6, 0.8), (0.8, -0.6), (-0.6, 0.8)), (1.0, 2.0, 0.5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The lr inside the momentum: the paper, TensorFlow 2's reference of MLPerf, mmpretrain.
        (
            {},
            [(2.997000000, 3.996000000), (2.986973556, 3.993735109), (2.978451068, 3.989701172)],
        ),
        (
            {"nesterov": True},
            [(2.994300000, 3.992400000), (2.977961538, 3.991699737), (2.970799583, 3.986079158)],
        ),
        # The lr outside: timm, LARC; and NVIDIA's MXNet, by momentum correction.
        (
            {"equation": 9},
            [(2.997000000, 3.996000000), (2.984273556, 3.990135109), (2.981911565, 3.986821774)],
        ),
        (
            {"momentum_correction": True},
            [(2.997000000, 3.996000000), (2.984273556, 3.990135109), (2.981911565, 3.986821774)],
        ),
        (
            {"equation": 9, "trust": 0.02},
            [(2.940000000, 3.920000000), (2.688091275, 3.803361074), (2.641935430, 3.739612037)],
        ),
    ],
)
def test_by_value(changes: dict[str, object], expected: list[tuple[float, float]]) -> None:
    weight = parameter(3, 4)
    optimizer = over(weight, replace(LARS, **changes))
    for gradient, lr, values in zip(GRADIENTS, LRS, expected, strict=True):
        step(optimizer, weight, torch.tensor(gradient, dtype=torch.float64), lr)
        assert weight.tolist() == pytest.approx(values, rel=0, abs=6e-10)


def test_fujitsus_denominator() -> None:
    """Its log has lr and decay in the denominator at once: 13 times 5e-5 (86,016 images)."""
    fujitsu = replace(LARS, trust=0.0025, momentum=0.96, weight_decay=5e-5)
    for decay, expected in (
        (None, [(2.9025, 3.87), (2.6831326, 3.83947803), (2.51818898, 3.74928328)]),
        (6.5e-4, [(2.90279155, 3.87038874), (2.68405538, 3.83997657), (2.5195989, 3.75004575)]),
    ):
        weight = parameter(3, 4)
        optimizer = over(weight, replace(fujitsu, ratio_decay=decay))
        for gradient, lr, values in zip(GRADIENTS, (13, 13, 6.5), expected, strict=True):
            step(optimizer, weight, torch.tensor(gradient, dtype=torch.float64), lr)
            assert weight.tolist() == pytest.approx(values, rel=0, abs=6e-9)


def test_a_tensor_without_decay_has_none_in_its_ratio() -> None:
    settings = replace(LARS, weight_decay=0.0)
    plain, other = parameter(3, 4), parameter(3, 4)
    for weight, each in ((plain, settings), (other, replace(settings, ratio_decay=0.5))):
        step(over(weight, each), weight, torch.tensor([0.6, 0.8], dtype=torch.float64), 1.0)
    assert plain.tolist() == other.tolist()


def ratio(weight: Tensor, gradient: Tensor, settings: Optim) -> float:
    """How much an update of plain SGD at lr 1 is scaled."""
    before = weight.detach().clone()
    step(over(weight, settings), weight, gradient, 1.0)
    moved, plain = before - weight.detach(), gradient + settings.weight_decay * before
    return (moved.norm() / plain.norm()).item()


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_scale_does_not_matter(of_gradient: float, of_weight: float) -> None:
    """Without decay: c g moves as g does, and c w by c times as much."""
    settings = replace(LARS, weight_decay=0.0)
    gradient = torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64)
    moved = []
    for scale_w, scale_g in ((1, 1), (1, of_gradient), (of_weight, 1)):
        weight = parameter(2.0 * scale_w, -1.0 * scale_w, 0.5 * scale_w)
        before = weight.detach().clone()
        step(over(weight, settings), weight, scale_g * gradient, 1.0)
        moved.append((before - weight.detach()) / scale_w)
    for one, other in pairwise(moved):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("weights", "gradient"), [((0, 0), (0.3, 0.4)), ((3, 4), (0, 0))])
def test_without_a_norm_there_is_no_ratio(weights: tuple, gradient: tuple) -> None:
    weight = parameter(*weights)
    settings = replace(LARS, equation=9)
    assert ratio(weight, torch.tensor(gradient, dtype=torch.float64), settings) == pytest.approx(1)


def test_eps_is_in_the_denominator() -> None:
    weight, gradient = parameter(3, 4), torch.tensor([0.6, 0.8], dtype=torch.float64)
    settings = replace(LARS, eps=0.5)
    assert ratio(weight, gradient, settings) == pytest.approx(0.001 * 5 / (1 + 0.1 * 5 + 0.5))


def test_an_lr_of_0_moves_nothing_and_its_gradient_counts_by_equation_9_alone() -> None:
    """MLPerf's reference begins with an lr of exactly 0."""
    left = {}
    for equation in (9, 10):
        weight = parameter(3, 4)
        optimizer = over(weight, replace(LARS, equation=equation))
        step(optimizer, weight, torch.tensor([0.6, 0.8], dtype=torch.float64), 0.0)
        assert weight.tolist() == [3, 4]
        step(optimizer, weight, torch.tensor([0.6, 0.8], dtype=torch.float64), 1.0)
        left[equation] = 5 - weight.detach().norm().item()
    assert left[9] == pytest.approx(1.9 * left[10], rel=1e-12)


def groups(**changes: object) -> dict[str, list[str]]:
    """How many tensors of a network are adapted and decayed, and which are not."""
    model = make_model("small_resnet", classes=10, channels=3, last_gamma=0.0, seed=0)
    names = {id(each): name for name, each in model.named_parameters()}
    settings = replace(LARS, **changes)
    found: dict[str, list[str]] = {}
    for group in optim.make_optimizer(model, **asdict(settings)).param_groups:
        adapted = "adapted" if ADAPTED_DECAY in group else "plain"
        decay = group["weight_decay"] + group.get(ADAPTED_DECAY, 0.0)
        found[f"{adapted} {decay:g}"] = [names[id(each)] for each in group["params"]]
    return found


def test_bn_and_biases_are_left_out_as_by_mlperf() -> None:
    found = groups()
    assert len(found["adapted 0.1"]) == 11
    assert all(name.endswith("weight") for name in found["adapted 0.1"])
    assert "fc.bias" in found["plain 0"]
    assert len(found["plain 0"]) == 2 * 10 + 1
    assert not found["plain 0.1"]


def test_a_bias_may_decay_and_everything_may_be_adapted() -> None:
    assert groups(decay_bias=True)["plain 0.1"] == ["fc.bias"]
    found = groups(adapts="all")
    assert (len(found["adapted 0.1"]), len(found["adapted 0"])) == (11, 21)
    assert not found["plain 0.1"]
    assert not found["plain 0"]


def test_in_a_model_the_decay_is_scaled_with_the_gradient() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 3).data[0, 1] = 4
    optimizer = optim.make_optimizer(model, **asdict(LARS))
    step(optimizer, model.weight, torch.tensor([[0.6, 0.8]], dtype=torch.float64), 1.0)
    assert model.weight[0].tolist() == pytest.approx([2.997, 3.996], rel=0, abs=1e-12)
