import copy

import torch
from torch import Tensor

from lsgd.metric_sums import MetricSums, MetricSumsState, subtract_sums
from lsgd.scores import Scores

CPU = torch.device("cpu")


def nothing(_: Tensor) -> None:
    """The sum over a single process."""


def tallied(*passes: tuple[float, list[int]]) -> MetricSums:
    """A tally of passes, each with its loss and its counts of three kinds."""
    tally = MetricSums(3, CPU)
    for loss, counts in passes:
        tally.add(torch.tensor(loss), torch.tensor(counts))
    return tally


def values(state: MetricSumsState) -> tuple[list[int], float]:
    return state["counts"].tolist(), state["loss"].item()


def test_passes_are_added_up() -> None:
    """The losses in float64, in which millions of float32 ones leave the sum exact enough."""
    tally = tallied((2.0**24, [4, 1, 2]), (1.0, [3, 0, 3]))
    assert values(tally.state(nothing)) == ([7, 1, 5], 2.0**24 + 1)


def test_rates_are_named_after_their_split() -> None:
    found = Scores({"images": 53}, {"loss": 2.0, "top1_error": 10.0})
    assert found.with_prefix("val") == {"val_loss": 2.0, "val_top1_error": 10.0}


def test_a_state_is_summed_over_processes_and_a_snapshot() -> None:
    """Reading it changes neither the tally nor, later, what was read."""
    tally = tallied((1.5, [3, 2, 3]))

    def two_alike(tensor: Tensor) -> None:
        tensor.mul_(2)

    state = tally.state(two_alike)
    assert values(state) == ([6, 4, 6], 3.0)
    before = copy.deepcopy(state)
    tally.add(torch.tensor(0.25), torch.tensor([1, 0, 1]))
    assert torch.equal(state["counts"], before["counts"])
    assert values(tally.state(nothing)) == ([4, 2, 4], 1.75)


def test_a_restored_tally_counts_on_and_a_cleared_one_anew() -> None:
    first = tallied((2.0, [4, 4, 4])).state(nothing)
    tally = MetricSums(3, CPU)
    tally.restore(first)
    tally.add(torch.tensor(1.0), torch.tensor([1, 1, 1]))
    assert values(subtract_sums(tally.state(nothing), first)) == ([1, 1, 1], 1.0)
    assert values(first) == ([4, 4, 4], 2.0)
    tally.clear()
    assert values(tally.state(nothing)) == ([0, 0, 0], 0.0)


def test_counting_keeps_no_graph_alive() -> None:
    """Memory would grow with every step."""
    tally = MetricSums(3, CPU)
    tally.add(torch.randn(2, requires_grad=True).sum(), torch.tensor([2, 1, 2]))
    assert not tally.loss.requires_grad
