import functools
import math

import pytest
import torch
from torch import nn

from lsgd.models import make_model
from lsgd.rules import optim
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.vision import models


@functools.cache
def made(name: str, *, seed: int = 0, last_gamma: float = 0.0) -> nn.Module:
    """The network as recipes make it; not to be changed."""
    small = {"classes": 10, "channels": 1}
    shape = small if name in ("small_resnet", "resnet20") else {"classes": 1000, "channels": 3}
    return make_model(name, **shape, last_gamma=last_gamma, seed=seed)


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "norms", "blocks"),
    [
        ("resnet50", 25_557_032, 161, 53, 16),
        ("resnet101", 44_549_160, 314, 104, 33),
        # He et al. 2016: 0.27 M; here with projections, for 1 channel and 10 classes.
        ("resnet20", 272_474, 68, 22, 9),
        ("small_resnet", 19_890, 32, 10, 3),
    ],
)
def test_counts(name: str, parameters: int, tensors: int, norms: int, blocks: int) -> None:
    """Sizes, and which tensors decay: conv and fc weights and the fc bias, not gamma and beta."""
    model = made(name)
    sizes = [p.numel() for p in model.parameters()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)
    decayed, kept = (group["params"] for group in optim.parameter_groups(model, 1e-4))
    assert (len(decayed), len(kept)) == (tensors - 2 * norms, 2 * norms)
    gammas = [m.weight for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(bool((gamma == 0).all()) for gamma in gammas) == blocks


def test_tensors_of_resnet50_that_decay_and_start_at_zero() -> None:
    """The BNs of shortcuts too, which are named "downsample.1", do not decay."""
    model = made("resnet50")
    names = {p: name for name, p in model.named_parameters()}
    groups = optim.parameter_groups(model, 1e-4)
    assert [group["weight_decay"] for group in groups] == [1e-4, 0.0]
    decayed, kept = ({names[p] for p in group["params"]} for group in groups)
    assert (len(decayed), len(kept)) == (55, 106)
    assert kept >= {
        f"layer{i}.0.downsample.1.{p}" for i in (1, 2, 3, 4) for p in ("weight", "bias")
    }
    assert decayed == {n for n, p in model.named_parameters() if p.dim() > 1} | {"fc.bias"}
    blocks = [f"layer{i}.{j}" for i, depth in enumerate((3, 4, 6, 3), 1) for j in range(depth)]
    zeros = {n for n, p in model.named_parameters() if n.endswith("weight") and not p.any()}
    assert zeros == {f"{block}.bn3.weight" for block in blocks}


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "resnet20", "small_resnet"])
def test_weights_start_as_in_the_paper(name: str) -> None:
    for module in made(name).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert_normal(module.weight, std=math.sqrt(2 / fan_out))
        if isinstance(module, nn.Linear):
            assert_normal(module.weight, std=0.01)
            assert not module.bias.any()
        if isinstance(module, nn.BatchNorm2d):
            assert torch.isin(module.weight, torch.tensor([0.0, 1.0])).all()
            assert not module.bias.any()
            assert type(module) is WorkerBatchNorm2d
            assert (module.eps, module.running_mean.any(), module.running_var.min()) == (1e-5, 0, 1)


def assert_normal(weight: torch.Tensor, *, std: float) -> None:
    """Mean and standard deviation within five of their own standard deviations."""
    count = weight.numel()
    assert abs(weight.mean()) < 5 * std / math.sqrt(count)
    assert abs(weight.std() / std - 1) < 5 / math.sqrt(2 * count)


def test_last_gamma_is_the_recipes() -> None:
    """The other row of table 2b."""
    model = made("small_resnet", last_gamma=1.0)
    gammas = [m.weight for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all((gamma == 1).all() for gamma in gammas)


def test_weights_are_a_function_of_the_seed() -> None:
    """Of nothing else: neither torch's global generator nor what was made before."""
    torch.manual_seed(123)
    again = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    for (name, a), b in zip(
        made("small_resnet").named_parameters(), again.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    other = dict(made("small_resnet", seed=1).named_parameters())
    for name, parameter in again.named_parameters():
        if parameter.dim() > 1:
            assert not torch.equal(parameter, other[name]), name


def test_state_loads_into_torchvisions_network() -> None:
    """By plain keys, and it computes the same there."""
    model = make_model("resnet50", classes=20, channels=3, last_gamma=0.5, seed=0).eval()
    assert (model.layer1[0].bn3.weight == 0.5).all()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.9, 1.1)
    plain = models.resnet50(num_classes=20)
    plain.load_state_dict(model.state_dict(), strict=True)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(model(images), plain.eval()(images))


def test_resnet50_strides_in_the_3x3_convolution() -> None:
    """Section 5.1; the original ResNet-50 strides in the 1x1."""
    strides = [getattr(made("resnet50"), f"layer{i}")[0] for i in (2, 3, 4)]
    assert [(b.conv1.stride, b.conv2.stride) for b in strides] == [((1, 1), (2, 2))] * 3


@pytest.mark.parametrize(
    ("name", "side"), [("small_resnet", 8), ("small_resnet", 28), ("resnet20", 32)]
)
def test_small_networks_take_small_images(name: str, side: int) -> None:
    model = make_model(name, classes=7, channels=3, last_gamma=0.0, seed=0).eval()
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)
