"""LeNet-5 is the network of its paper, as it is trained today."""

import pytest
import torch
from helpers.composed import compose_recipe
from torch.nn import functional as F

from lsgd.errors import UsageError
from lsgd.models import make_network
from lsgd.models.lenet import LeNet5
from lsgd.recipe.fields import trajectory


def test_the_first_fully_connected_layer_is_as_wide_as_its_field() -> None:
    """The recipe of the published width keeps its fingerprint, and any other has one of its own."""
    words = ["+recipe=fashion_lenet5"]
    published, wide = (compose_recipe(*words, *w) for w in ([], ["model.hidden=240"]))
    assert compose_recipe(*words, "model.hidden=120").fingerprint == published.fingerprint
    assert trajectory(published, "images")["model"].keys() == {"name", "last_gamma"}
    assert wide.fingerprint != published.fingerprint
    network = make_network(wide)
    assert network.fc1.weight.shape == (240, 400)
    assert network.fc2.weight.shape == (84, 240)
    torch.testing.assert_close(make_network(published).conv1.weight, network.conv1.weight)
    with pytest.raises(
        UsageError, match=r"model\.hidden=240 has no effect with model=resnet.*model=lenet5"
    ):
        compose_recipe("+recipe=fashion_resnet20", "model.hidden=240")


def test_logits_are_those_of_the_formula() -> None:
    """Written a second time: ReLU behind all layers but the last, and the largest of 2 x 2."""
    model = LeNet5(7, channels=3)
    images = torch.randn(2, 3, 28, 28)
    w = dict(model.named_parameters())
    x = F.conv2d(F.pad(images, (2, 2, 2, 2)), w["conv1.weight"], w["conv1.bias"])
    x = x.clamp(min=0).unflatten(3, (14, 2)).unflatten(2, (14, 2)).amax((3, 5))
    x = F.conv2d(x, w["conv2.weight"], w["conv2.bias"])
    x = x.clamp(min=0).unflatten(3, (5, 2)).unflatten(2, (5, 2)).amax((3, 5)).flatten(1)
    for name in ("fc1", "fc2"):
        x = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).clamp(min=0)
    logits = x @ w["fc.weight"].T + w["fc.bias"]
    assert logits.shape == (2, 7)
    torch.testing.assert_close(model(images), logits)
