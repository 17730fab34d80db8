"""The tagger gives the same in every grid, and what a plain LSTM over each sentence gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lsgd.learner import compile_children
from lsgd.models import initialise
from lsgd.models.tagger import PaddedGrid, TaggedBatch, Tagger, make_grid

WORDS, TAGS, WIDTH = 11, 4, 5


def tagger(*, crf: bool) -> Tagger:
    model = Tagger(WORDS, TAGS, embedding=3, width=WIDTH, crf=crf).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def batch(
    lengths: list[int], grids: list[PaddedGrid], chains: list[PaddedGrid] | None = None
) -> TaggedBatch:
    generator = torch.Generator().manual_seed(len(lengths))
    words, tags = (
        torch.randint(most, (sum(lengths),), generator=generator) for most in (WORDS, TAGS)
    )
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    kept = torch.rand(len(lengths), 3 + 2 * WIDTH, generator=generator, dtype=torch.float64) > 0.5
    return TaggedBatch(words, tags, numbers, grids, chains or grids, 2.0 * kept)


def results(model: Tagger, given: TaggedBatch) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The loss, the best tags and the gradient."""
    scores = model(given)
    loss = model.loss(scores, given)
    return (
        loss.detach(),
        model.decode(scores, given),
        [*torch.autograd.grad(loss, model.parameters())],
    )


LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@pytest.mark.slow
@pytest.mark.parametrize("crf", [False, True])
@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 3))
def test_every_grid_gives_the_same(crf: bool, lengths: list[int], more: int) -> None:
    """Padded, longer than need be, packed, in parts and alone: loss, tags and gradient."""
    model, all_, longest = tagger(crf=crf), np.array(lengths), max(lengths)
    wide = make_grid(all_, longest + more)
    halves = [make_grid(own, max(own)) for own in np.split(all_, [len(all_) // 2]) if len(own)]
    ways = [
        batch(lengths, [wide]),
        batch(lengths, [make_grid(all_, longest, packed=True)]),
        batch(lengths, halves),
        batch(lengths, halves, [wide]),
        batch(lengths, [make_grid(all_[i : i + 1], length) for i, length in enumerate(lengths)]),
    ]
    expected = results(model, batch(lengths, [make_grid(all_, longest)]))
    for way in ways:
        torch.testing.assert_close(results(model, way), expected, rtol=0, atol=1e-12)


def test_it_starts_by_the_seed_alone() -> None:
    """The scores of the CRF 0, the linear layer small, and the rest U(-0.1, 0.1)."""
    one, other = (Tagger(50, TAGS, embedding=30, width=20, crf=True) for _ in range(2))
    initialise(one, last_gamma=0, seed=3)
    torch.randn(7)
    initialise(other, last_gamma=0, seed=3)
    for (name, weight), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, same)
        if name.startswith(("crf.", "fc.bias")):
            assert not weight.any()
        elif name != "fc.weight":
            assert 0.08 < weight.abs().max() < 0.1
    initialise(other, last_gamma=0, seed=4)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


@pytest.mark.slow
# torch's own, when its compiler is imported.
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_it_can_be_compiled() -> None:
    """As a whole, since its parts are torch's own, with grids of two sizes."""
    model, compiled = tagger(crf=True), tagger(crf=True)
    compile_children(compiled)
    for lengths in ([3, 2], [4, 1, 1]):
        given = batch(lengths, [make_grid(np.array(lengths), max(lengths))])
        torch.testing.assert_close(
            results(compiled, given), results(model, given), rtol=0, atol=1e-12
        )
