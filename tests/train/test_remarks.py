"""The remarks of Goyal et al. 2017, section 3: pitfalls that still train, only differently.

The fourth, one permutation per epoch that is divided among the workers, is in test_sampler.py.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.recipe import Optim
from lsgd.rules import optim
from lsgd.rules.schedule import learning_rate
from lsgd.strategy.reducer import Reducer

WORKERS, IMAGES, STEPS = 8, 4, 60
CLOSE = {"rtol": 1e-10, "atol": 1e-12}

Loss = Callable[[nn.Module, Tensor, Tensor, Reducer], None]
"""Leaves the gradient of a step with these images and labels in `.grad`."""


def network() -> nn.Module:
    """Two layers without BN, whose loss over 8 workers is that over one large minibatch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(steps, WORKERS * IMAGES, 6, generator=generator, dtype=torch.float64)
    labels = images[..., :3].argmax(-1)
    return list(zip(images, labels, strict=True))


def rates() -> list[float]:
    """A run of 6 epochs of 10 steps: warmup to 8 times the lr, then two drops."""
    return [
        learning_rate(
            step / 10,
            batch_size=8 * 32,
            reference_lr=0.1,
            reference_batch=32,
            warmup_epochs=2,
            milestones=(3, 5),
        )
        for step in range(STEPS)
    ]


def mean_loss(model: nn.Module, images: Tensor, labels: Tensor, reducer: Reducer) -> None:
    """The minibatch as one: the mean over kn images, by PyTorch alone."""
    model.zero_grad(set_to_none=False)
    F.cross_entropy(model(images), labels).backward()


def trained(
    loss: Loss = mean_loss,
    *,
    lrs: list[float] | None = None,
    equation: int = 9,
    correction: bool = False,
    nesterov: bool = False,
    weight_decay: float = 0.01,
    flagged: bool = False,
) -> dict[str, Tensor]:
    """The parameters after the run, whose optimizer may be told whether a gradient was finite."""
    model = network()
    reducer = Reducer(model.parameters(), SingleComm(), bucket_mb=1, compression="none")
    settings = Optim(
        nesterov=nesterov,
        weight_decay=weight_decay,
        equation=equation,
        momentum_correction=correction,
    )
    optimizer = optim.make_optimizer(model, **asdict(settings))
    if flagged:
        optimizer.found_inf = reducer.found_inf
    for lr, (images, labels) in zip(lrs or rates(), batches(), strict=True):
        loss(model, images, labels, reducer)
        optim.set_lr(optimizer, lr)
        optimizer.step()
    return copy.deepcopy(model.state_dict())


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference of any two parameters."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_remark_2_equation_10_needs_momentum_correction(nesterov: bool, flagged: bool) -> None:
    ours = trained(equation=9, nesterov=nesterov)
    corrected = trained(equation=10, correction=True, nesterov=nesterov, flagged=flagged)
    torch.testing.assert_close(corrected, ours, **CLOSE)
    assert distance(trained(equation=10, nesterov=nesterov), ours) > 0.01
    still = [0.1] * STEPS
    torch.testing.assert_close(
        trained(equation=10, nesterov=nesterov, lrs=still),
        trained(nesterov=nesterov, lrs=still),
        **CLOSE,
    )


def test_remark_1_scaling_the_loss_is_not_scaling_the_lr() -> None:
    """It leaves the weight decay unscaled; without decay the two agree."""

    def eightfold(model: nn.Module, images: Tensor, labels: Tensor, reducer: Reducer) -> None:
        model.zero_grad(set_to_none=False)
        (8 * F.cross_entropy(model(images), labels)).backward()

    low, high = [0.02] * STEPS, [0.16] * STEPS
    assert distance(trained(eightfold, lrs=low), trained(lrs=high)) > 0.01
    torch.testing.assert_close(
        trained(eightfold, lrs=low, weight_decay=0.0), trained(lrs=high, weight_decay=0.0), **CLOSE
    )


def summed_over_workers(
    model: nn.Module, images: Tensor, labels: Tensor, reducer: Reducer, examples: int
) -> None:
    """A step as train_step makes it: sums of 8 workers, divided by `examples`."""
    reducer.start(examples, passes=WORKERS)
    for mine, its in zip(images.split(IMAGES), labels.split(IMAGES), strict=True):
        reducer.backward(F.cross_entropy(model(mine), its, reduction="sum"))
    reducer.finish()


def test_remark_3_the_loss_is_normalised_by_kn() -> None:
    """8 workers of n are one minibatch of 8 n."""
    by_kn = trained(lambda *step: summed_over_workers(*step, examples=WORKERS * IMAGES))
    torch.testing.assert_close(by_kn, trained(), **CLOSE)


def test_remark_3_normalising_by_n_does_not_cancel_the_scaled_lr() -> None:
    """The sum over workers of means over n, at an lr 8 times lower: only without decay the same."""

    def by_n(*step: object) -> None:
        summed_over_workers(*step, examples=IMAGES)  # type: ignore[arg-type]

    lower = [lr / WORKERS for lr in rates()]
    assert distance(trained(by_n, lrs=lower), trained()) > 0.01
    torch.testing.assert_close(
        trained(by_n, lrs=lower, weight_decay=0.0), trained(weight_decay=0.0), **CLOSE
    )
