import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.micro_batches import evaluation_micro_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.metric_sums import MetricSums
from lsgd.scores import Scores
from lsgd.workloads import compute_metrics
from lsgd.workloads.images import ImageClassification

CPU = torch.device("cpu")
IMAGES = ImageClassification(compose_recipe("+recipe=digits", "precision=float64"), CPU)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_counts_are_exact_whatever_the_passes(classes: int, examples: int, batch: int) -> None:
    """Right in five guesses with fewer than five classes is always right."""
    generator = torch.Generator().manual_seed(examples)
    logits = torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (examples,), generator=generator)
    tally = MetricSums(len(IMAGES.count_names), CPU)
    for ids in torch.arange(examples).split(batch):
        (each,) = evaluation_micro_batches(ids.numpy())
        tally.add(*IMAGES.loss(nn.Identity(), (logits[ids], labels[ids]), each))
    state = tally.state(lambda _: None)
    # The rank of the right answer: how many guesses are better.
    values = logits.numpy()
    better = (values > values[np.arange(examples), labels][:, None]).sum(axis=1)
    assert state["counts"].tolist() == [examples, (better < 1).sum(), (better < 5).sum()]
    loss = F.cross_entropy(logits, labels, reduction="sum").item()
    assert state["loss"].item() == pytest.approx(loss, rel=1e-12)


def top(logits: Tensor, labels: Tensor) -> list[int]:
    """How many of the images an evaluation counts as right at the first guess, and within five."""
    (each,) = evaluation_micro_batches(np.arange(len(labels)))
    _, counts = IMAGES.loss(nn.Identity(), (logits.double(), labels), each)
    return counts[1:].tolist()


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("classes", [3, 10, 100, 1000])
def test_outputs_that_are_not_finite_are_wrong(classes: int, odd: float) -> None:
    labels = torch.arange(classes)
    assert top(torch.full((classes, classes), odd), labels) == [0, 0]
    # One such output is enough, whatever else there is.
    logits = torch.eye(classes)
    assert top(logits, labels) == [classes, classes]
    logits[::2, classes // 2] = odd
    assert top(logits, labels) == [classes // 2, classes // 2]


@pytest.mark.parametrize("classes", [3, 10, 100, 1000])
def test_equal_outputs_are_as_good_as_guessing(classes: int) -> None:
    assert top(torch.zeros(classes, classes), torch.arange(classes)) == [1, min(5, classes)]


def test_labels_are_smoothed_in_training_alone() -> None:
    """A tenth of the label is spread over all ten classes, the right one among them."""
    smooths = ImageClassification(
        compose_recipe("+recipe=digits", "precision=float64", "label_smoothing=0.1"), CPU
    )
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (6,), generator=generator)
    (each,) = evaluation_micro_batches(np.arange(6))
    surprise = -torch.log_softmax(logits, dim=1)
    right = surprise[torch.arange(6), labels].sum().item()
    for split, expected in (("val", right), ("train", 0.9 * right + 0.01 * surprise.sum().item())):
        loss, _ = smooths.loss(nn.Identity(), (logits, labels), replace(each, split=split))
        assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_rates_are_percentages_of_what_was_wrong() -> None:
    state = {"counts": torch.tensor([53, 40, 50]), "loss": torch.tensor(106.0)}
    rates = {"loss": 2.0, "top1_error": 100 * 13 / 53, "top5_error": 100 * 3 / 53}
    assert compute_metrics(IMAGES, state) == Scores({"images": 53, "top1": 40, "top5": 50}, rates)
