"""What is summed, from the real model."""

import pytest
import torch
from helpers.capabilities import require_capability
from helpers.composed import compose_recipe
from torch import nn

from lsgd.comm.single import SingleComm
from lsgd.models import make_model
from lsgd.plan import gradients, phases
from lsgd.plan.gradients import gradient_buckets, multiply_adds
from lsgd.plan.phases import relative_work
from lsgd.recipe import Recipe
from lsgd.strategy.reducer import Reducer

FLAGS = 2 * 4
"""Bytes that the last bucket carries behind its gradients."""


@pytest.fixture(scope="module")
def resnet50() -> Recipe:
    return compose_recipe("+recipe=bs256")


def test_the_tensors_of_resnet50(resnet50: Recipe) -> None:
    """161 of 25,557,032 numbers: first the bias of the last layer, last the first convolution."""
    tensors = gradient_buckets(resnet50, fused=False)
    assert len(tensors) == 161
    assert sum(tensor.size for tensor in tensors) == 4 * 25_557_032 + FLAGS
    assert [tensor.size for tensor in tensors[:2]] == [4 * 1000, 4 * 1000 * 2048]
    assert tensors[-1].size == 4 * 64 * 3 * 7 * 7 + FLAGS


def test_when_they_are_ready(resnet50: Recipe) -> None:
    """After the share of the 4.089 billion multiply-adds that the layers behind them have."""
    ready = [tensor.ready_share for tensor in gradient_buckets(resnet50, fused=False)]
    assert ready == sorted(ready)
    assert ready[0] == pytest.approx(1000 * 2048 / 4.089e9, rel=1e-3)
    # The gradient of the first layer, 112 x 112 x 64 x 147 of them, is there when all is.
    assert ready[-1] == 1.0
    assert 1 - ready[-4] == pytest.approx(112 * 112 * 64 * 147 / 4.089e9, rel=1e-3)


class Shared(nn.Module):
    """A convolution that is called three times, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1, bias=False)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            images = self.conv(images)
        result: torch.Tensor = self.second(self.first(images))
        return result


def test_a_layer_that_is_called_again_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On images of 4 x 4 pixels a call has 16 x 9 multiply-adds, and a shared layer 48 x 4."""
    model = Shared()
    counts = multiply_adds(model, 3, 4)
    assert counts == {model.conv: 3 * 144, model.first: 192, model.second: 192}
    monkeypatch.setattr(gradients, "make_network", lambda recipe: Shared())
    shape = ["data.channels=3", "data.mean=[0,0,0]", "data.std=[1,1,1]", "data.image_size=4"]
    recipe = compose_recipe("+recipe=fashion_bs256", *shape)
    found = gradient_buckets(recipe, fused=False)
    assert [piece.ready_share for piece in found] == [384 / 816, 1.0]


class Functional(nn.Module):
    """A network without layers, whose multiply-adds are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(images.mean((2, 3)), self.weight)


def test_without_counted_work_gradients_come_last_and_sizes_go_by_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback for such a network of one's own."""
    for module in (gradients, phases):
        monkeypatch.setattr(module, "make_network", lambda recipe: Functional())
    recipe = compose_recipe("+recipe=fashion_bs256", "image_sizes.points=[[0,14],[2,28]]")
    assert [piece.ready_share for piece in gradient_buckets(recipe, fused=False)] == [1.0]
    assert relative_work(recipe) == {14: 0.25, 21: 0.5625, 28: 1.0}


def test_fused_they_are_the_buckets_of_a_run() -> None:
    recipe = compose_recipe("+recipe=fashion_bs256", "comm.bucket_mb=0.02")
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    reducer = Reducer(model.parameters(), SingleComm(), bucket_mb=0.02, compression="none")
    found = gradient_buckets(recipe, fused=True)
    assert len(found) > 2
    assert [piece.size for piece in found] == [
        4 * bucket.flat.numel() for bucket in reducer.buckets
    ]
    assert found[-1].ready_share == 1.0


@pytest.mark.parametrize(
    ("word", "width"), [("gradient_compression=fp16", 2), ("precision=float64", 8)]
)
def test_bytes_on_the_wire(word: str, width: int) -> None:
    recipe = compose_recipe("+recipe=fashion_bs256", word)
    assert sum(piece.size for piece in gradient_buckets(recipe, fused=True)) == width * (19_890 + 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "numbers"),
    [
        # Blocks that start their last gamma themselves, and widths that are found by tensors.
        ("timm/resnet10t", 5_435_488),
        ("torchvision/regnet_y_400mf", 4_344_144),
    ],
)
def test_networks_of_libraries_have_shapes_without_values(network: str, numbers: int) -> None:
    if network.startswith("timm/"):
        require_capability("timm")
    sums = gradient_buckets(compose_recipe("+recipe=bs256", f"model={network}"), fused=True)
    assert sum(each.size for each in sums) == 4 * numbers + FLAGS
    assert sums[-1].ready_share == 1.0
