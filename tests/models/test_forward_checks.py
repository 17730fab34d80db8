"""A network that computes an image's output from other images, or earlier ones, is found."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.models.forward_checks import find_changed_buffer, find_dependence, record_buffers
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.rules.counter_dropout import CounterBasedDropout

ATTENTION = nn.MultiheadAttention(4, 2)  # without batch_first, its sequence is the images


class Network(nn.Module):
    """A convolution, batch norm by worker, dropout, and a residual branch that begins at 0."""

    def __init__(self, branch: Callable[["Network", Tensor], Tensor]) -> None:
        super().__init__()
        self.branch, self.calls = branch, 0
        self.conv, self.norm = nn.Conv2d(3, 4, 3), WorkerBatchNorm2d(4)
        self.drop, self.fc = CounterBasedDropout(0.5, layer=0, seed=0), nn.Linear(4, 7)
        self.scale = nn.Parameter(torch.zeros(4))
        self.register_buffer("center", torch.zeros(4))
        nn.init.zeros_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.fc(x + self.scale * self.branch(self, self.drop(x)))


def attended(_: Network, x: Tensor) -> Tensor:
    return ATTENTION(x, x, x)[0]


def centred(network: Network, x: Tensor) -> Tensor:
    network.center = 0.9 * network.center + 0.1 * x.mean(0)
    return x - network.center


def counted(network: Network, x: Tensor) -> Tensor:
    network.calls += 1
    return x * network.calls


def turned(network: Network, x: Tensor) -> Tensor:
    """Return the rows in order, after batch norm has had them in another one."""
    return network.norm(x.flip(0)[:, :, None, None]).flip(0).flatten(1)


OTHERS, EARLIER = "the other images of a micro-batch", "earlier forward passes"


@pytest.mark.parametrize(
    ("branch", "found"),
    [
        (lambda _, x: x.sin(), None),
        (lambda _, x: F.layer_norm(x, (4,)), None),
        (lambda _, x: F.dropout(x, 0.5), None),  # which other checks find
        (lambda _, x: x - x.mean(0), OTHERS),
        (lambda _, x: F.batch_norm(x, None, None, training=True), OTHERS),
        (lambda _, x: x.roll(1, 0), OTHERS),
        (lambda _, x: x.cumsum(0), OTHERS),
        (lambda _, x: x.softmax(0), OTHERS),
        (attended, OTHERS),
        (turned, OTHERS),
        (centred, EARLIER),
        (counted, EARLIER),
    ],
)
@pytest.mark.parametrize("count", [2, 5])
def test_what_an_output_depends_on(
    branch: Callable[[Network, Tensor], Tensor], found: str | None, count: int
) -> None:
    images = torch.randn(2 * count - 1, 3, 5, 5, generator=torch.Generator().manual_seed(0))

    network = Network(branch).train()
    before = torch.get_rng_state()

    def call(some: list[int]) -> tuple[Tensor, int, Tensor]:
        output = network(images[some])
        of_all = output.detach().sum() * torch.ones(count)  # such as a state of each layer
        return output, len(some), of_all

    assert find_dependence(network, call, count) == found
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_that_are_assigned() -> None:
    """Of other values; a table that is computed again, converted or of another size is the same."""
    network = Network(centred)
    record = record_buffers(network)
    for buffer in (torch.zeros(4).add_(0), torch.zeros(4).double(), torch.zeros(5)):
        network.center = buffer
        assert find_changed_buffer(network, record) is None
    network.center = torch.ones(4)
    assert find_changed_buffer(network, record) == "center"
    record = record_buffers(network)
    network.center.data = torch.zeros(4)
    assert find_changed_buffer(network, record) == "center"
    network.center = torch.full((4,), torch.nan)
    record = record_buffers(network)
    network.center = network.center.clone()
    assert find_changed_buffer(network, record) is None
    network.center += 1
    assert find_changed_buffer(network, record_buffers(network)) is None
