"""LAMB against numbers of its implementations and a plain loop; its groups, and its memory."""

from dataclasses import asdict, replace

import pytest
import torch
from helpers.layerwise import over, parameter, step
from torch import Tensor, nn

from lsgd.recipe import Optim
from lsgd.rules import optim

LAMB = Optim(name="lamb", nesterov=False, weight_decay=0.1, eps=1e-6, bias_correction=False)
CORRECTED = replace(LAMB, bias_correction=True)
GRADIENTS = ((0.3, 0.4), (0.4, -0.3), (-0.3, 0.4))


@pytest.mark.parametrize(
    ("settings", "adapted", "lr", "expected"),
    [
        # The code of its authors, and of NUS.
        (
            LAMB, True, 0.01,
            [(2.965151970, 3.964144529), (2.916357199, 3.955794250), (2.887288640, 3.916166436)],
        ),
        # timm and apex.
        (
            CORRECTED, True, 0.01,
            [(2.965977459, 3.963360312), (2.919631769, 3.945964861), (2.890531294, 3.906434478)],
        ),
        # What they exclude.
        (
            LAMB, False, 0.01,
            [(2.968380556, 3.968379723), (2.926001087, 3.964584015), (2.909561277, 3.942152447)],
        ),
        (
            CORRECTED, False, 0.01,
            [(2.990000033, 3.990000025), (2.980026833, 3.989106777), (2.976705647, 3.984575151)],
        ),
        (
            replace(LAMB, weight_decay=1.5), True, 0.04,
            [(2.871697261, 3.846577684), (2.715844497, 3.734424199), (2.607053292, 3.585161845)],
        ),
    ],
)  # fmt: skip
def test_by_value(settings: Optim, adapted: bool, lr: float, expected: list[tuple]) -> None:
    weight = parameter(3, 4)
    optimizer = over(weight, settings, adapted)
    for gradient, values in zip(GRADIENTS, expected, strict=True):
        step(optimizer, weight, torch.tensor(gradient, dtype=torch.float64), lr)
        assert weight.tolist() == pytest.approx(values, rel=0, abs=6e-10)


def test_the_gradient_is_clipped_before_its_means() -> None:
    """Not afterwards: eps sees it, since g and c g have the same direction without eps."""
    weight = parameter(3, 4)
    step(over(weight, replace(LAMB, clip_norm=1.0)), weight, parameter(3, 4).detach(), 0.01)
    assert weight.tolist() == pytest.approx((2.965151736, 3.964144756), rel=0, abs=6e-10)


@pytest.mark.parametrize("zero", ["weight", "gradient", "both", "none"])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_plain_loop_comes_to_the_same(corrected: bool, zero: str) -> None:
    """To 12 digits. The ratio is 1 while the tensor, or its update, is 0."""
    settings = replace(
        LAMB, weight_decay=0.0 if zero == "gradient" else 0.3, bias_correction=corrected
    )
    generator = torch.Generator().manual_seed(0)

    def drawn(*at: str) -> Tensor:
        values = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        return torch.zeros_like(values) if zero in at else values

    w = drawn("weight", "both")
    weight = nn.Parameter(w.clone())
    optimizer, (m, v) = over(weight, settings), (torch.zeros_like(w), torch.zeros_like(w))
    for t, lr in enumerate((0.1, 0.4, 0.04, 0.2), start=1):
        g = drawn("gradient", "both")
        step(optimizer, weight, g, lr)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = m / (v**0.5 + 1e-6)
        if corrected:
            u = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-6)
        u = u + settings.weight_decay * w
        norms = [sum(x**2 for x in each.flatten().tolist()) ** 0.5 for each in (w, u)]
        w = w - lr * (norms[0] / norms[1] if all(norms) else 1.0) * u
        torch.testing.assert_close(weight.detach(), w, rtol=1e-12, atol=1e-12)


class Small(nn.Module):
    """A weight, biases and norms, of which each form of LAMB scales others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("changes", "adapted", "decayed"),
    [
        ({"decay_bias": False}, ["conv.weight", "fc.weight"], ["conv.weight", "fc.weight"]),  # NUS
        # The authors' code: biases as weights, BN alone by Adam.
        (
            {"adapts": "decayed"},
            ["conv.weight", "fc.weight", "conv.bias", "fc.bias"],
            ["conv.weight", "fc.weight", "conv.bias", "fc.bias"],
        ),
        # timm and apex, which scale nothing without decay,
        ({"adapts": "decayed", "weight_decay": 0.0}, [], []),
        # unless told: always_adapt, use_nvlamb.
        (
            {"adapts": "all", "decay_bias": False},
            ["conv.weight", "fc.weight", "conv.bias", "bn.weight", "bn.bias", "fc.bias"],
            ["conv.weight", "fc.weight"],
        ),
        # A bias that decays without being scaled, by AdamW.
        ({}, ["conv.weight", "fc.weight"], ["conv.weight", "fc.weight", "conv.bias", "fc.bias"]),
    ],
)
def test_which_tensors_are_scaled_and_which_decay(
    changes: dict[str, object], adapted: list[str], decayed: list[str]
) -> None:
    """A gradient of 0 leaves the decay alone, and a ratio moves all weights of 2 by lr times 2."""
    settings = replace(LAMB, **changes)
    for gradients, found in ((0.0, decayed), (0.5, adapted)):
        model = Small().double()
        for each in model.parameters():
            nn.init.constant_(each, 2.0)
            each.grad = torch.full_like(each, gradients)
        optimizer = optim.make_optimizer(model, **asdict(settings))
        optim.set_lr(optimizer, 0.1)
        optimizer.step()
        moved = {
            name
            for name, each in model.named_parameters()
            if (gradients == 0 and not torch.equal(each, torch.full_like(each, 2.0)))
            or (gradients and each.flatten()[0].item() == pytest.approx(2 - 0.1 * 2, abs=1e-9))
        }
        assert moved == {*found}


def test_in_float32_the_direction_has_all_its_digits() -> None:
    """It replaces the gradient, however large that is, and is not its difference to something."""
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    exact = parameter(3, 4)
    for each in (weight, exact):
        optimizer = over(each, LAMB)
        step(optimizer, each, torch.tensor([1e6, 2e-6], dtype=each.dtype), 0.01)
    assert weight.tolist() == pytest.approx(exact.tolist(), rel=3e-7)
