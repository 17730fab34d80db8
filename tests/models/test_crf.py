"""The CRF is the sum over all paths, written out."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lsgd.models.crf import CRF


def drawn(tags: int, lengths: list[int], places: int, seed: int) -> tuple[CRF, Tensor, Tensor]:
    """A CRF with any scores, emissions and the mask of sentences of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(tags).double()
    for parameter in crf.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    shape = places, len(lengths), tags
    emissions = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return crf, emissions, torch.arange(places)[:, None] < torch.tensor(lengths)


def scores(crf: CRF, emissions: Tensor) -> dict[tuple[int, ...], Tensor]:
    """The score of each path of one sentence, by the sum that Lample et al. 2016 write."""
    places, tags = emissions.shape
    return {
        path: crf.first[path[0]]
        + sum(emissions[place, tag] for place, tag in enumerate(path))
        + sum(crf.transitions[one, other] for one, other in pairwise(path))
        + crf.last[path[-1]]
        for path in product(range(tags), repeat=places)
    }


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 2),
    st.integers(0, 2**31),
)
def test_it_is_the_sum_over_all_paths(tags: int, lengths: list[int], more: int, seed: int) -> None:
    """Partition, the score of some tags, their likelihood, and the best path of each sentence,
    whatever lies behind its end. The gradient is torch's own of these sums."""
    crf, emissions, mask = drawn(tags, lengths, max(lengths) + more, seed)
    best, partition = crf.decode(emissions, mask), crf.log_partition(emissions, mask)
    gold = torch.where(mask, torch.randint(tags, mask.shape), 0)
    loss = torch.zeros((), dtype=torch.float64)
    for number, length in enumerate(lengths):
        paths = scores(crf, emissions[:length, number])
        total = torch.logsumexp(torch.stack([*paths.values()]), 0)
        torch.testing.assert_close(partition[number], total, rtol=1e-12, atol=1e-12)
        assert tuple(best[:length, number].tolist()) == max(paths, key=paths.__getitem__)
        assert not best[length:, number].any()
        loss += total - paths[tuple(gold[:length, number].tolist())]
    torch.testing.assert_close(crf.loss(emissions, gold, mask), loss, rtol=1e-12, atol=1e-12)
