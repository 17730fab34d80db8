"""Blurred strides, uniform gammas and the last bias: by value, by name, and what they refuse."""

import math

import pytest
import torch
from helpers.composed import compose_recipe
from torch import nn

from lsgd.errors import UsageError
from lsgd.models import make_network
from lsgd.models.blurpool import BlurredConv2d, BlurredMaxPool2d, blur, blur_kernel, blur_strides
from lsgd.rules.batchnorm import worker_batch_norms


def test_a_blur_by_value() -> None:
    """Of ones, with zeros around them."""
    found = blur(torch.ones(2, 3, 3, 3), blur_kernel())
    expected = [[0.5625, 0.75, 0.5625], [0.75, 1.0, 0.75], [0.5625, 0.75, 0.5625]]
    assert found.tolist() == [[expected] * 3] * 2


@pytest.mark.parametrize(("kind", "pools"), [("convolutions", 0), ("all", 1)])
def test_a_strided_convolution_sees_a_blurred_image(kind: str, pools: int) -> None:
    """The first layer, of 3 channels, does not; nor does one without a stride."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 16, 3), nn.Conv2d(16, 4, 1, stride=2),
    ).double()  # fmt: skip
    names = list(model.state_dict())
    images = torch.randn(2, 3, 21, 21, generator=torch.Generator().manual_seed(0)).double()
    first, pool, second, last = (layer for layer in model)
    pooled, kernel = pool(first(images)), blur_kernel().double()
    maxima = nn.functional.max_pool2d(first(images), 3, 1, 1)
    expected = second(blur(maxima, kernel)[:, :, ::2, ::2] if pools else pooled)
    expected = last(blur(expected, kernel))
    blur_strides(model, kind)
    model.double()
    torch.testing.assert_close(model(images), expected)
    assert [*model.state_dict()] == names
    assert [type(layer) is BlurredConv2d for layer in model] == [False, False, False, True]
    assert isinstance(model[1], BlurredMaxPool2d) == bool(pools)


def test_resnet50_has_six_blurred_convolutions_and_a_pool() -> None:
    """Two in each of the last three stages: of a block and of its shortcut."""
    with torch.device("meta"):
        model = make_network(compose_recipe("+recipe=bs256", "model.blurpool=all"))
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(BlurredConv2d), kinds.count(BlurredMaxPool2d)) == (6, 1)


def test_uniform_gammas_leave_the_other_weights_as_they_are() -> None:
    words = ("+recipe=digits", "model.gamma=uniform", "model.last_bias=-2.3026")
    made, plain = make_network(compose_recipe(*words)), make_network(compose_recipe(words[0]))
    gammas = torch.cat([layer.weight for layer in worker_batch_norms(made)])
    assert 0 <= gammas.min() < 0.1 < 0.9 < gammas.max() <= 1
    assert gammas.mean().item() == pytest.approx(0.5, abs=3 / math.sqrt(12 * len(gammas)))
    assert made.fc.bias.tolist() == pytest.approx([-2.3026] * 10)
    assert torch.equal(made.conv1.weight, plain.conv1.weight)
    again = make_network(compose_recipe(*words))
    assert all(map(torch.equal, made.parameters(), again.parameters()))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.blurpool=all", "blurpool=all is for the networks of lsgd, .*model=torchvision/res"),
        ("model.gamma=uniform", "gamma=uniform is for the networks of lsgd"),
        ("model.last_bias=-1", "last_bias=-1 is for the networks of lsgd"),
    ],
)
def test_a_network_of_a_library_is_as_it_is(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose_recipe("+recipe=bs256", "model=torchvision/resnet18", word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model.gamma=uniform model.last_gamma=1", "last_gamma=1 .*model.gamma=uniform; leave"),
        ("optim.decay=decoupled strategy=sync", "decay=decoupled .*; write strategy=allreduce"),
        ("optim.decay=decoupled optim=adamw", "decay=decoupled .*optim=adamw; .*optim=sgd"),
        ("optim.decay=decoupled optim.fused=apex", "fused=apex .*optim.decay=decoupled"),
        ("bce_over_classes=mean", "bce_over_classes=mean .*loss=cross_entropy; .*loss=bce"),
        ("averaging.every=2", "averaging.every=2 .*averaging=none; .*averaging=ema"),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose_recipe("+recipe=bs256", *words.split())
