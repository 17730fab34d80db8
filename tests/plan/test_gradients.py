"""What is summed, from the real model."""

import pytest
import torch

from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.models import make_model
from lsgd.plan.gradients import multiply_adds, pieces
from lsgd.recipe import Recipe
from lsgd.strategy.reducer import Reducer

FLAGS = 2 * 4
"""Bytes that the last bucket carries behind its gradients."""


@pytest.fixture(scope="module")
def resnet50() -> Recipe:
    return load_recipe(["+recipe=bs256"])


def test_the_tensors_of_resnet50(resnet50: Recipe) -> None:
    """161 of 25,557,032 numbers: first the bias of the last layer, last the first convolution."""
    tensors = pieces(resnet50, fused=False)
    assert len(tensors) == 161
    assert sum(tensor.size for tensor in tensors) == 4 * 25_557_032 + FLAGS
    assert [tensor.size for tensor in tensors[:2]] == [4 * 1000, 4 * 1000 * 2048]
    assert tensors[-1].size == 4 * 64 * 3 * 7 * 7 + FLAGS


def test_when_they_are_ready(resnet50: Recipe) -> None:
    """After the share of the 4.089 billion multiply-adds that the layers behind them have."""
    ready = [tensor.ready for tensor in pieces(resnet50, fused=False)]
    assert ready == sorted(ready)
    assert ready[0] == pytest.approx(1000 * 2048 / 4.089e9, rel=1e-3)
    # The gradient of the first layer, 112 x 112 x 64 x 147 of them, is there when all is.
    assert ready[-1] == 1.0
    assert 1 - ready[-4] == pytest.approx(112 * 112 * 64 * 147 / 4.089e9, rel=1e-3)


def test_multiply_adds_of_resnet50() -> None:
    with torch.device("meta"):
        model = make_model("resnet50", classes=1000, channels=3, last_gamma=0.0, seed=0)
    assert sum(multiply_adds(model, 3, 224).values()) == pytest.approx(4.089e9, rel=1e-4)


def test_fused_they_are_the_buckets_of_a_run() -> None:
    recipe = load_recipe(["+recipe=fashion_bs256", "comm.bucket_mb=0.02"])
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    reducer = Reducer(model.parameters(), SingleComm(), bucket_mb=0.02, compression="none")
    found = pieces(recipe, fused=True)
    assert len(found) > 2
    assert [piece.size for piece in found] == [
        4 * bucket.flat.numel() for bucket in reducer.buckets
    ]
    assert found[-1].ready == 1.0


@pytest.mark.parametrize(
    ("word", "width"), [("gradient_compression=fp16", 2), ("precision=float64", 8)]
)
def test_bytes_on_the_wire(word: str, width: int) -> None:
    recipe = load_recipe(["+recipe=fashion_bs256", word])
    assert sum(piece.size for piece in pieces(recipe, fused=True)) == width * (19_890 + 2)
