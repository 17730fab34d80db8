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

from lsgd.inputs import training_labels
from lsgd.metric_sums import MetricSums
from lsgd.rules.mixing import draw_mixing
from lsgd.rules.sampler import MicroBatch
from lsgd.scores import Scores
from lsgd.workloads import compute_metrics
from lsgd.workloads.images import ImageClassification, binary_cross_entropy, ranked_labels

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


def bce(over_classes: str, smoothing: float = 0.0) -> ImageClassification:
    words = ("loss=bce", f"bce_over_classes={over_classes}", f"label_smoothing={smoothing}")
    recipe = compose_recipe("+recipe=digits", "precision=float64", *words)
    return ImageClassification(recipe, CPU)


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (bce("sum"), 1.133336879),
        (bce("sum", 0.1), 1.300003546),
        (bce("mean", 0.1), 0.433334515),
    ],
)
def test_binary_cross_entropy_by_value(workload: ImageClassification, expected: float) -> None:
    """The sum over the classes of (2, 0, -1), of the first class; summed over two such images."""
    logits = torch.tensor([[2.0, 0.0, -1.0]] * 2, dtype=torch.float64)
    each = MicroBatch(0, np.arange(2))
    loss, counts = workload.loss(nn.Identity(), (logits, torch.zeros(2, dtype=int)), each)
    assert loss.item() == pytest.approx(2 * expected, rel=1e-9)
    assert counts.tolist() == [2, 2, 2]
    even = torch.full((1, 1000), -math.log(1000), dtype=torch.float64)
    found = binary_cross_entropy(even, torch.tensor([7]), smoothing=0.0, over_classes="sum")
    assert found.item() == pytest.approx(7.907256, rel=1e-7)


def test_an_evaluation_does_not_smooth_and_may_mirror() -> None:
    """Of a network that sees the left half only, both halves count with the mirror image."""
    (each,) = evaluation_micro_batches(np.arange(1))
    images = torch.arange(16.0, dtype=torch.float64).reshape(1, 1, 4, 4)
    left = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)).double()
    batch = images, torch.tensor([0])
    plain, mirrored = (
        ImageClassification(compose_recipe("+recipe=digits", "precision=float64", *words), CPU)
        for words in ((), ("evaluation.mirror=true", "label_smoothing=0.1"))
    )
    logits = (left(images) + left(images.flip(-1))) / 2
    loss, _ = mirrored.loss(left, batch, each)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, batch[1]).item(), rel=1e-12)
    assert torch.equal(mirrored.logits(left, images), logits)
    assert torch.equal(plain.logits(left, images), left(images))
    in_training, _ = mirrored.loss(left, batch, MicroBatch(0, np.arange(1)))
    assert in_training.item() == pytest.approx(
        F.cross_entropy(left(images), batch[1], label_smoothing=0.1).item(), rel=1e-12
    )


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


def test_the_guesses_are_the_same_in_a_longer_list() -> None:
    """Each label is in it once, the five guesses first."""
    logits = torch.zeros(2, 1000)
    logits[1, :2] = torch.tensor([1.0, 2.0])
    labels = ranked_labels(logits, 1000)
    assert torch.equal(labels[:, :5], logits.topk(5).indices)
    assert labels[1, :2].tolist() == [1, 0]
    assert torch.equal(labels.sort().values, torch.arange(1000).expand(2, -1))
    assert torch.equal(ranked_labels(logits, 1), labels[:, :1])


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


BALANCED = [
    "+recipe=digits", "precision=float64", "data.balance=weights", "inputs=synthetic",
    "data.train_examples=34", "data.classes=4", "label_smoothing=0.1", "workers=2",
    "worker_batch=4",
]  # fmt: skip


def test_class_weights_multiply_the_training_loss_alone() -> None:
    """34 images have 9, 9, 8 and 8 of the classes; an evaluation is not weighted."""
    workload = ImageClassification(compose_recipe(*BALANCED), CPU)
    logits = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 3])
    weights = torch.tensor([34 / 36, 34 / 36, 34 / 32, 34 / 32], dtype=torch.float64)
    each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
    loss, counts = workload.loss(nn.Identity(), (logits, labels), MicroBatch(0, labels.numpy()))
    torch.testing.assert_close(loss, (each * weights[labels]).sum())
    assert counts[0] == 5
    (one,) = evaluation_micro_batches(labels.numpy())
    torch.testing.assert_close(
        workload.loss(nn.Identity(), (logits, labels), one)[0],
        F.cross_entropy(logits, labels, reduction="sum"),
    )


def test_the_loss_of_mixed_images_is_that_of_both_labels() -> None:
    """Of two workers with two images each; class weights and smoothing apply to either label."""
    workload = ImageClassification(compose_recipe(*BALANCED, "data.mixup=0.4"), CPU)
    labels, each = torch.tensor([0, 3, 2, 1]), MicroBatch(0, np.array([4, 2, 7, 5]), range(2))
    images = torch.randn(4, 1, 1, 4, dtype=torch.float64)
    shares = draw_mixing(
        np.array([4, 2]), 8, mixup=0.4, cutmix=0, seed=workload.recipe.seed, epoch=0
    )
    own = torch.from_numpy(shares[:, 0].astype(np.float32)).double().repeat(2)
    logits = own[:, None] * images.flatten(1) + (1 - own)[:, None] * images.flatten(1)[[2, 3, 0, 1]]
    weights = torch.tensor([34 / 36, 34 / 36, 34 / 32, 34 / 32], dtype=torch.float64)
    expected = sum(
        (
            share * weights[to] * F.cross_entropy(logits, to, reduction="none", label_smoothing=0.1)
        ).sum()
        for share, to in ((own, labels), (1 - own, labels[[2, 3, 0, 1]]))
    )
    loss, counts = workload.loss(nn.Flatten(), (images, labels), each)
    torch.testing.assert_close(loss, expected)
    assert counts.tolist() == [4, (logits.argmax(1) == labels).sum(), 4]
    ids = evaluation_micro_batches(each.examples)[0]
    whole = workload.loss(nn.Flatten(), (images, labels), ids)[0]
    torch.testing.assert_close(
        whole, F.cross_entropy(images.flatten(1), labels, reduction="sum"), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("made_up", [True, False])
def test_a_balanced_sampler_repeats_images_with_other_crops(made_up: bool) -> None:
    words = ["inputs=synthetic"] if made_up else ["data.augmentation=shift_flip"]
    recipe = compose_recipe("+recipe=digits", "data.balance=sampler", "device=cpu", *words)
    workload = ImageClassification(recipe, CPU)
    count, order = recipe.train_examples, workload.example_order(2)
    assert len(order) == count
    (repeated,) = (order[order >= count][:1],)
    ids = np.concatenate((repeated, repeated % count))
    inputs = workload.inputs()
    ((images, labels),) = inputs.train([MicroBatch(2, ids)])
    assert labels[0] == labels[1] == training_labels(recipe)[ids[1]]
    assert torch.equal(images[0], images[1]) == made_up


def test_labels_of_a_loader_of_ones_own_may_be_other_integers() -> None:
    """Counts in the type of the labels, such as uint8, would end at 255."""
    logits, each = torch.eye(10)[torch.arange(300) % 10], MicroBatch(0, np.arange(300))
    for dtype in (torch.uint8, torch.int32):
        labels = (torch.arange(300) % 10).to(dtype)
        _, counts = IMAGES.loss(nn.Identity(), (logits, labels), each)
        assert counts.tolist() == [300, 300, 300]
