"""Which server has which parameters: against the published rules, and every element once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.strategy.placement import PLACEMENTS, SPLIT, elements, place, place_on_all

LENET5 = [150, 6, 2400, 16, 48000, 120, 10080, 84, 840, 10]
LSTM = [2_000_000, 160_000, 160_000, 800, 800, 160_000, 160_000, 800, 800, 2_000_000, 10_000]
FULLEST = {
    "lenet5": {2: (1.99, 1.56, 1.99), 3: (2.34, 2.33, 2.34), 4: (3.18, 3.11, 3.18)},
    "lstm": {2: (1.00, 1.14, 1.00), 3: (2.68, 1.50, 1.07), 4: (1.99, 1.86, 1.14)},
}
"""The fullest server's share of the mean, by placement as in PLACEMENTS, counted by hand."""


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize("network", FULLEST)
def test_the_fullest_server(network: str, servers: int, placement: str) -> None:
    sizes = {"lenet5": LENET5, "lstm": LSTM}[network]
    loads = [elements(each) for each in place(sizes, servers, placement)]
    expected = FULLEST[network][servers][PLACEMENTS.index(placement)]
    assert max(loads) / (sum(sizes) / servers) == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_server_is_without_a_parameter(placement: str) -> None:
    assert all(place_on_all(LENET5, 10, placement))
    with pytest.raises(UsageError, match="servers=11 are more than this network's 10 parameters"):
        place_on_all(LENET5, 11, placement)


@given(
    st.lists(st.one_of(st.integers(1, 100), st.integers(SPLIT - 1, 2 * SPLIT)), max_size=12),
    st.integers(1, 7),
    st.sampled_from(PLACEMENTS),
)
def test_every_element_is_on_one_server(sizes: list[int], servers: int, placement: str) -> None:
    slices = place(sizes, servers, placement)
    assert len(slices) == servers
    for parameter, size in enumerate(sizes):
        pieces = sorted(
            (each.begin, each.end)
            for server in slices
            for each in server
            if each.parameter == parameter
        )
        assert pieces[0][0] == 0
        assert pieces[-1][1] == size
        assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
        assert len(pieces) == (servers if placement == "hash" and size >= SPLIT else 1)
