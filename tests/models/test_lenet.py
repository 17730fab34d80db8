"""LeNet-5 is the network of its paper, as it is trained today."""

import torch
from torch.nn import functional as F

from lsgd.models.lenet import LeNet5


def test_shapes_are_the_papers() -> None:
    """C1, C3, C5, F6 and the output of LeCun et al. 1998, figure 2."""
    shapes = {
        name: tuple(weight.shape) for name, weight in LeNet5(10, channels=1).named_parameters()
    }
    assert {name: shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "conv1.weight": (6, 1, 5, 5),
        "conv2.weight": (16, 6, 5, 5),
        "fc1.weight": (120, 400),
        "fc2.weight": (84, 120),
        "fc.weight": (10, 84),
    }


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
