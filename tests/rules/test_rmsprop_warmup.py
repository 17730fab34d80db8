"""The change from RMSprop to SGD of Akiba et al. 2017: its formulas in numbers, and its traps."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor, nn

from lsgd.recipe import Optim
from lsgd.rules import optim
from lsgd.rules.optimizers.rmsprop_warmup import alpha_sgd

AKIBA = Optim(name="rmsprop_warmup", nesterov=False, weight_decay=0.0, beta2=0.99)


def over(weight: Tensor, settings: Optim) -> torch.optim.Optimizer:
    groups = [{"params": [weight], "weight_decay": settings.weight_decay}]
    return optim.optimizer_over_groups(groups, **optim.shared_settings(asdict(settings)))


def test_the_share_of_sgd_by_value() -> None:
    """It arrives at 1 with its slope, 1/5, and neither jumps there nor exceeds it, as by 2/5."""
    expected = {
        0: 0.009158, 5: 0.067668, 9: 0.335160, 10: 0.5, 11: 0.7, 12: 0.9, 12.5: 1.0, 90: 1.0
    }  # fmt: skip
    for epoch, share in expected.items():
        assert alpha_sgd(epoch) == pytest.approx(share, rel=0, abs=5e-7)
    assert alpha_sgd(12.4999) == pytest.approx(1, abs=1e-4)
    left, right = ((alpha_sgd(10 + d) - alpha_sgd(10)) / d for d in (-1e-6, 1e-6))
    assert left == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize(
    ("lr", "epoch", "expected"),
    [
        # The mean square inside the momentum; with it outside the second weight is .957335147.
        (6.4, 0, (0.967722452, 0.954659873, 0.911606907)),
        (0.1, 10, (0.9735, 0.96282352, 0.927209673)),
    ],
)
def test_by_value(lr: float, epoch: int, expected: tuple[float, ...]) -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = over(weight, AKIBA)
    optim.set_epoch(optimizer, epoch)
    for gradient, value in zip((0.5, -0.25, 0.5), expected, strict=True):
        weight.grad = torch.full_like(weight, gradient)
        optim.set_lr(optimizer, lr)
        optimizer.step()
        assert weight.item() == pytest.approx(value, rel=0, abs=6e-10)


def test_a_plain_loop_comes_to_the_same() -> None:
    """To 12 digits, over the epochs of the change and behind it, with weight decay."""
    settings = replace(AKIBA, weight_decay=0.02, rms_lr=1e-3, beta_center=3.0, beta_period=4.0)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    weight = nn.Parameter(w.clone())
    optimizer, d, v = over(weight, settings), torch.zeros_like(w), torch.zeros_like(w)
    for step in range(14):
        epoch, lr = step // 2, (0.1, 0.4, 0.03)[step % 3]
        g = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        weight.grad = g.clone()
        optim.set_epoch(optimizer, epoch)
        optim.set_lr(optimizer, lr)
        optimizer.step()
        share = 0.5 * torch.e ** ((epoch - 3) / 2) if epoch < 3 else min(0.5 + (epoch - 3) / 4, 1)
        g = g + 0.02 * w
        v = 0.99 * v + 0.01 * g**2
        d = 0.9 * d - (share + (1 - share) * 1e-3 / lr / (v**0.5 + 1e-8)) * g
        w = w + lr * d
        torch.testing.assert_close(weight.detach(), w, rtol=1e-12, atol=1e-12)


def test_an_lr_of_0_moves_nothing() -> None:
    """As behind the end of a decay, where RMSprop would have to be divided by it."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = over(weight, AKIBA)
    weight.grad = torch.ones(2)
    optim.set_lr(optimizer, 0.0)
    optimizer.step()
    assert weight.tolist() == [1, 1]
    assert optimizer.state[weight]["momentum_buffer"].isfinite().all()
