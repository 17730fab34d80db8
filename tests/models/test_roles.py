"""What the parameters of a network are for, by what they do in it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.models.parameter_roles import find_roles


class Rms(nn.Module):
    """A norm that is written by hand, and no subclass of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(1, keepdim=True)) * self.weight[:, None, None]


class Net(nn.Module):
    """A stem, a block by `forward`, and logits."""

    def __init__(self, block: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.block = block
        self.stem, self.project = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.one, self.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, bias=False)
        self.norm, self.last, self.rms = nn.BatchNorm2d(4), nn.BatchNorm2d(4), Rms()
        self.gate, self.fc = nn.Conv2d(4, 4, 1), nn.Linear(4, 7)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.gain = nn.Parameter(torch.ones(4, 1, 1, 1))
        self.places = nn.Parameter(torch.zeros(1, 4, 6, 6))
        self.shift_bias = nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(self, self.stem(x)).mean((2, 3)))

    def branch(self, x: Tensor) -> Tensor:
        """Two products and no norm at the end."""
        return self.two(F.relu(self.norm(self.one(x))))


def roles(block: Callable[[Net, Tensor], Tensor]) -> tuple[set[str], set[str]]:
    found = find_roles(Net(block).train(), torch.empty(5, 3, 6, 6, device="meta"))
    return set(found.last_norms), set(found.elementwise)


def gated(net: Net, x: Tensor) -> Tensor:
    y = net.last(net.branch(x))
    return x + F.dropout(y * net.gate(y.mean((2, 3), keepdim=True)).sigmoid())


def nested(net: Net, x: Tensor) -> Tensor:
    y = net.last(net.branch(x))
    return x + (y + net.rms(net.gate(y)))


@pytest.mark.parametrize(
    ("block", "last"),
    [
        (lambda net, x: x + net.last(net.branch(x)), {"last"}),
        (lambda net, x: net.last(net.branch(x)).add_(x), {"last"}),
        (lambda net, x: x + net.rms(net.branch(x)), {"rms"}),
        (lambda net, x: net.norm(net.project(x)) + net.last(net.two(net.one(x))), {"last"}),
        (gated, {"last"}),
        (nested, {"last", "rms"}),
        # The branch ends in a convolution, an activation that would stay at 0, or a layer scale.
        (lambda net, x: x + net.branch(net.last(x)), set()),
        (lambda net, x: x + F.relu(net.last(net.branch(x))), set()),
        (lambda net, x: x + net.scale * net.last(net.branch(x)), set()),
        # Branches alike, as those that are to be merged; and a shortcut that normalises.
        (lambda net, x: net.norm(net.one(x)) + net.last(net.two(x)), set()),
        (lambda net, x: net.norm(x) + net.last(net.two(x)), set()),
        # What is 0 would be missing elsewhere.
        (lambda net, x: (y := net.last(net.branch(x))) * 0 + net.gate(y) + (x + y), set()),
        (lambda net, x: net.last(net.gate(x + net.last(net.branch(x)))), set()),
    ],
)
def test_the_last_norm_of_a_residual_block(
    block: Callable[[Net, Tensor], Tensor], last: set[str]
) -> None:
    assert roles(block)[0] == last


def test_what_is_applied_place_by_place() -> None:
    """Scales, places and shifts of a norm, but neither weights nor their biases."""

    def block(net: Net, x: Tensor) -> Tensor:
        weight = net.gain * F.layer_norm(net.two.weight, net.two.weight.shape[1:])
        x = F.conv2d(x + net.places, weight) + net.shift_bias
        return net.scale * net.rms(net.last(x))

    assert roles(block)[1] == {
        "gain", "places", "scale", "rms.weight", "last.weight", "last.bias",
    }  # fmt: skip


def test_what_a_network_keeps_of_a_pass_is_not_of_this_one() -> None:
    """Some keep positions that they have worked out, whose values a training pass needs."""

    def block(net: Net, x: Tensor) -> Tensor:
        net.kept = x.detach()
        return x

    net = Net(block)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    find_roles(net, torch.empty(5, 3, 6, 6, device="meta"))
    assert not hasattr(net, "kept")
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
