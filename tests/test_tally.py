import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lsgd.tally import Scores, Tally, difference, scores

CPU = torch.device("cpu")


def nothing(_: Tensor) -> None:
    """The sum over a single process."""


def tallied(logits: Tensor, labels: Tensor, batch: int) -> dict[str, Tensor]:
    tally = Tally(CPU)
    for some, theirs in zip(logits.split(batch), labels.split(batch), strict=True):
        tally.add(F.cross_entropy(some, theirs, reduction="sum"), some, theirs)
    return tally.state(nothing)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_counts_are_exact_whatever_the_batch(classes: int, examples: int, batch: int) -> None:
    """Right in five guesses with fewer than five classes is always right."""
    generator = torch.Generator().manual_seed(examples)
    logits = torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (examples,), generator=generator)
    state = tallied(logits, labels, batch)
    # The rank of the right answer: how many guesses are better.
    values = logits.numpy()
    better = (values > values[np.arange(examples), labels][:, None]).sum(axis=1)
    assert state["counts"].tolist() == [examples, (better < 1).sum(), (better < 5).sum()]
    loss = F.cross_entropy(logits, labels, reduction="sum").item()
    assert state["loss"].item() == pytest.approx(loss, rel=1e-12)


def test_scores_are_percentages_of_what_was_wrong() -> None:
    state = {"counts": torch.tensor([53, 40, 50]), "loss": torch.tensor(106.0)}
    found = scores(state)
    assert found == Scores(53, 2.0, 100 * 13 / 53, 100 * 3 / 53)
    assert found.named("val") == {
        "val_loss": 2.0,
        "val_top1_error": 100 * 13 / 53,
        "val_top5_error": 100 * 3 / 53,
    }


def test_a_state_is_summed_over_processes_and_a_snapshot() -> None:
    """Reading it changes neither the tally nor, later, what was read."""
    logits, labels = torch.eye(3), torch.tensor([0, 1, 0])
    tally = Tally(CPU)
    tally.add(torch.tensor(1.5), logits, labels)

    def two_alike(tensor: Tensor) -> None:
        tensor.mul_(2)

    state = tally.state(two_alike)
    assert (state["counts"].tolist(), state["loss"].item()) == ([6, 4, 6], 3.0)
    before = copy.deepcopy(state)
    tally.add(torch.tensor(0.25), logits[:1], labels[1:2])
    assert torch.equal(state["counts"], before["counts"])
    assert tally.state(nothing)["counts"].tolist() == [4, 2, 4]
    assert tally.state(nothing)["loss"].item() == 1.75


def test_a_restored_tally_counts_on_and_a_cleared_one_anew() -> None:
    logits, labels = torch.eye(4), torch.arange(4)
    first = tallied(logits, labels, 4)
    tally = Tally(CPU)
    tally.restore(first)
    tally.add(torch.tensor(1.0), logits[:1], labels[:1])
    now = tally.state(nothing)
    assert difference(now, first)["counts"].tolist() == [1, 1, 1]
    assert difference(now, first)["loss"].item() == 1.0
    assert torch.equal(first["counts"], torch.tensor([4, 4, 4]))
    tally.clear()
    assert tally.state(nothing)["counts"].tolist() == [0, 0, 0]
    assert tally.state(nothing)["loss"].item() == 0


def test_counting_keeps_no_graph_alive() -> None:
    """Memory would grow with every step."""
    tally = Tally(CPU)
    logits = torch.randn(2, 3, requires_grad=True)
    tally.add(logits.sum(), logits, torch.tensor([0, 1]))
    assert not tally.loss.requires_grad
