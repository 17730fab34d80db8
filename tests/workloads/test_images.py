from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.passes import evaluating
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lsgd.config import load_recipe
from lsgd.tally import Scores, Tally
from lsgd.workloads import scores
from lsgd.workloads.images import Images

CPU = torch.device("cpu")
IMAGES = Images(load_recipe(["+recipe=digits", "precision=float64"]), CPU)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_counts_are_exact_whatever_the_passes(classes: int, examples: int, batch: int) -> None:
    """Right in five guesses with fewer than five classes is always right."""
    generator = torch.Generator().manual_seed(examples)
    logits = torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (examples,), generator=generator)
    tally = Tally(len(IMAGES.counts), CPU)
    for ids in torch.arange(examples).split(batch):
        (each,) = evaluating(ids.numpy())
        tally.add(*IMAGES.loss(nn.Identity(), (logits[ids], labels[ids]), each))
    state = tally.state(lambda _: None)
    # The rank of the right answer: how many guesses are better.
    values = logits.numpy()
    better = (values > values[np.arange(examples), labels][:, None]).sum(axis=1)
    assert state["counts"].tolist() == [examples, (better < 1).sum(), (better < 5).sum()]
    loss = F.cross_entropy(logits, labels, reduction="sum").item()
    assert state["loss"].item() == pytest.approx(loss, rel=1e-12)


def test_labels_are_smoothed_in_training_alone() -> None:
    """A tenth of the label is spread over all ten classes, the right one among them."""
    smooths = Images(
        load_recipe(["+recipe=digits", "precision=float64", "label_smoothing=0.1"]), CPU
    )
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (6,), generator=generator)
    (each,) = evaluating(np.arange(6))
    surprise = -torch.log_softmax(logits, dim=1)
    right = surprise[torch.arange(6), labels].sum().item()
    for split, expected in (("val", right), ("train", 0.9 * right + 0.01 * surprise.sum().item())):
        loss, _ = smooths.loss(nn.Identity(), (logits, labels), replace(each, split=split))
        assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_rates_are_percentages_of_what_was_wrong() -> None:
    state = {"counts": torch.tensor([53, 40, 50]), "loss": torch.tensor(106.0)}
    rates = {"loss": 2.0, "top1_error": 100 * 13 / 53, "top5_error": 100 * 3 / 53}
    assert scores(IMAGES, state) == Scores({"images": 53, "top1": 40, "top5": 50}, rates)
