"""Dropout and stochastic depth by (seed, epoch, example): any pass, any device's integers."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lsgd.errors import UsageError
from lsgd.rules import philox
from lsgd.rules.counter_dropout import (
    FIRST_LAYER_COUNTER,
    CounterBasedDraws,
    CounterBasedDropout,
    counter_dropout_layers,
    keep_mask,
    replace_dropout,
    uint32_blocks,
)
from lsgd.rules.sampler import MicroBatch

WORD = st.integers(0, 2**32 - 1)
CPU = torch.device("cpu")


def begun(
    layer: CounterBasedDropout, examples: list[int], *, epoch: int = 3
) -> CounterBasedDropout:
    ids = np.array(examples, dtype=np.int64)
    CounterBasedDraws([layer], torch.from_numpy).start_micro_batch(
        MicroBatch(epoch, ids, range(1), 0, "train")
    )
    return layer.train()


@given(WORD, WORD, WORD, WORD, st.integers(0, 2**64 - 1))
def test_words_are_those_of_philox(c0: int, c1: int, c2: int, c3: int, key: int) -> None:
    """Bit by bit, without an integer of 64 bits and no sign."""
    ours = uint32_blocks(torch.tensor([c0]), torch.tensor([c1]), torch.tensor([c2]), c3, key)
    theirs = philox.uint32_blocks((c0, c1, c2, c3), key)
    assert [int(word) for word in ours] == [int(word) for word in theirs]


def test_the_mask_is_of_the_uniform_numbers() -> None:
    draws = torch.tensor([[7, 1281166], [4, 4]])
    mask = keep_mask(draws, 10, 0.3, layer=2, seed=5)
    counter = (np.array([[7], [1281166]]), 4, np.arange(3), FIRST_LAYER_COUNTER + 2)
    uniforms = philox.uniforms(counter, 5).transpose(1, 2, 0).reshape(2, -1)[:, :10]
    assert torch.equal(mask, torch.from_numpy(uniforms >= 0.3))


def test_the_masks_are_those_of_all_earlier_versions() -> None:
    """Of a layer that a micro-batch calls twice."""
    layer = begun(CounterBasedDropout(0.5, layer=0, seed=1), [5])
    kept = [layer(torch.ones(1, 16)).nonzero()[:, 1].tolist() for _ in range(2)]
    assert kept == [[0, 1, 5, 8, 9, 10, 12, 14, 15], [0, 1, 5, 6, 7, 8, 10]]


class Repeated(nn.Module):
    """The same dropout layer for one or several calls, each from a checkpoint or not."""

    def __init__(self, calls: int, reentrant: bool | None) -> None:
        super().__init__()
        self.calls, self.reentrant = calls, reentrant
        self.part = nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            if self.reentrant is None:
                x = self.part(x)
            else:
                x = checkpoint(self.part, x, use_reentrant=self.reentrant)
        return x


def gradient_of(network: nn.Module, passes: int = 2) -> Tensor:
    """The gradient of a few inputs through a network with dropout, in several micro-batches."""
    layers = counter_dropout_layers(network)
    x = torch.linspace(-1, 1, 64).view(2, 32).requires_grad_()
    for _ in range(passes):
        for layer in layers:
            begun(layer, [5, 9])
        network(x).square().sum().backward()
    return x.grad


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_draws_the_same_mask_again(reentrant: bool, is_compiled: bool) -> None:
    torch._dynamo.reset()
    gradients = []
    for kind in (None, reentrant):
        network = Repeated(1, kind)
        replace_dropout(network, seed=1)
        if is_compiled:
            network.compile(backend="aot_eager")
        gradients.append(gradient_of(network))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_several_calls_is_refused(reentrant: bool) -> None:
    network = Repeated(2, reentrant)
    replace_dropout(network, seed=1)
    with pytest.raises(UsageError, match=r"part\.1 of rate 0.5 was called 2 times"):
        gradient_of(network)


@pytest.mark.parametrize("whole", [False, True])
def test_an_example_meets_the_same_in_any_pass(whole: bool) -> None:
    layer = CounterBasedDropout(0.5, layer=0, seed=1, per_example=whole)
    x = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    together = begun(layer, [5, 9, 2, 70, 1, 8])(x)
    apart = torch.cat([begun(layer, ids)(part) for ids, part in
                       (([5, 9], x[:2]), ([2], x[2:3]), ([70, 1, 8], x[3:]))])  # fmt: skip
    assert torch.equal(together, apart)
    turned = begun(layer, [8, 1, 70, 2, 9, 5])(x.flip(0)).flip(0)
    assert torch.equal(together, turned)


def test_seeds_epochs_layers_and_calls_differ() -> None:
    x = torch.ones(4, 64)
    ids = [0, 1, 2, 3]
    layer = begun(CounterBasedDropout(0.5, layer=0, seed=1), ids)
    masks = [
        layer(x),
        layer(x),  # again in this pass
        begun(CounterBasedDropout(0.5, layer=1, seed=1), ids)(x),
        begun(CounterBasedDropout(0.5, layer=0, seed=2), ids)(x),
        begun(CounterBasedDropout(0.5, layer=0, seed=1), ids, epoch=4)(x),
        begun(CounterBasedDropout(0.5, layer=0, seed=1), [4, 5, 6, 7])(x),
    ]
    for i, one in enumerate(masks):
        assert all(not torch.equal(one, other) for other in masks[:i])
    assert torch.equal(begun(layer, ids)(x), masks[0])


@pytest.mark.parametrize("whole", [False, True])
def test_share_and_scale(whole: bool) -> None:
    x = torch.ones(4000, 8)
    out = begun(CounterBasedDropout(0.2, layer=0, seed=0, per_example=whole), list(range(4000)))(x)
    assert set(out.unique().tolist()) == {0.0, 1.25}
    dropped = (out == 0).double().mean().item()
    # Four standard deviations of so many draws.
    assert abs(dropped - 0.2) < 4 * (0.16 / (4000 if whole else 32000)) ** 0.5
    if whole:
        assert torch.equal(out, out[:, :1].expand_as(out))
    unscaled = begun(
        CounterBasedDropout(0.2, layer=0, seed=0, per_example=whole, scaled=False),
        list(range(4000)),
    )(x)
    assert torch.equal(unscaled, out / 1.25)


def test_ends_of_the_rate_and_evaluation() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(
        begun(CounterBasedDropout(1.0, layer=0, seed=0), [0, 1, 2])(x), torch.zeros(3, 5)
    )
    assert torch.equal(CounterBasedDropout(0.5, layer=0, seed=0).eval()(input=x), x)


class StochasticDepth(nn.Module):
    """As torchvision's."""

    p, mode = 0.2, "row"


def test_only_layers_of_torch_are_found_as_its_dropout() -> None:
    """Whoever sets the rate of all dropout does not set that of stochastic depth."""
    network = nn.Sequential(nn.Dropout(0.0), StochasticDepth(), nn.Dropout(0.3))
    replace_dropout(network, seed=1, may_change=True)
    assert [isinstance(each, nn.Dropout) for each in network] == [True, False, True]
    assert [each.p for each in counter_dropout_layers(network)] == [0.0, 0.2, 0.3]
    assert network.state_dict() == {}
    assert pickle.loads(pickle.dumps(network[0])).train().p == 0.0
    assert str(network[2]) == "ReplacedDropout(rate=0.3)"


def test_the_gradient_is_that_of_what_is_kept() -> None:
    x = torch.randn(3, 50, requires_grad=True)
    out = begun(CounterBasedDropout(0.5, layer=0, seed=0), [0, 1, 2])(x)
    out.sum().backward()
    assert torch.equal(x.grad, (out != 0) * 2.0)
