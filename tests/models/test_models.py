"""The shipped networks: their sizes, how their weights start, and by what."""

import functools
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.steps import CPU
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.models import converted, initialise, make_model, make_network
from lsgd.recipe.settings import MODELS
from lsgd.rules import optim
from lsgd.rules.batchnorm import WorkerBatchNorm2d, worker_batch_norms
from lsgd.vision import models
from lsgd.workloads.images import ImageClassification

NAMES = sorted(MODELS["images"])
"""Taggers and language models have tests of their own."""
GOLDEN = Path(__file__).parent.parent / "golden/networks.json"


@functools.cache
def made(name: str, *, seed: int = 0, last_gamma: float = 0.0) -> nn.Module:
    """The network as recipes make it; not to be changed."""
    large = name in ("resnet50", "resnet50_v2", "resnet101")
    shape = {"classes": 1000, "channels": 3} if large else {"classes": 10, "channels": 1}
    return make_model(name, **shape, last_gamma=last_gamma, seed=seed)


@pytest.mark.parametrize("word", ["channels_last=true", "compile=true"])
def test_no_projection_of_few_channels_has_a_stride_on_a_cpu(word: str) -> None:
    """In channels_last oneDNN's kernel for it writes beyond its memory. The outputs stay."""
    plain, other = (
        ImageClassification(compose_recipe("+recipe=fashion_bs64", "precision=float64", *more), CPU)
        for more in ([], [word])
    )
    network = other.network()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    points = [layer for layer in layers if layer.kernel_size == (1, 1)]
    assert min(layer.in_channels for layer in points) < 16
    assert all(layer.stride == (1, 1) or layer.in_channels >= 16 for layer in points)
    images = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    wanted = plain.network().eval()(images)
    torch.testing.assert_close(network.eval()(images), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "norms", "blocks"),
    [
        ("resnet50", 25_557_032, 161, 53, 16),
        ("resnet50_v2", 25_549_352, 153, 49, 16),
        ("resnet101", 44_549_160, 314, 104, 33),
        # He et al. 2016: 0.27 M; here with projections, for 1 channel and 10 classes.
        ("resnet20", 272_474, 68, 22, 9),
        ("small_resnet", 19_890, 32, 10, 3),
        ("lenet5", 61_706, 10, 0, 0),
    ],
)
def test_counts(name: str, parameters: int, tensors: int, norms: int, blocks: int) -> None:
    """Sizes, and which tensors decay: all weights and biases but gamma and beta."""
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


@pytest.mark.parametrize("name", NAMES)
def test_weights_start_as_in_the_paper(name: str) -> None:
    """The last linear layer as the paper's fc; those before it, as convolutions, by He."""
    model = made(name)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_out = module.weight.shape[0] * math.prod(module.weight.shape[2:])
            std = 0.01 if module is linear[-1] else math.sqrt(2 / fan_out)
            assert_normal(module.weight, std=std)
            assert module.bias is None or not module.bias.any()
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


@pytest.mark.parametrize("name", ["resnet50", "small_resnet", "lenet5"])
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    """Of nothing else: torch's global generator is neither asked for any that is then replaced, nor
    moved."""
    model = made(name)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = made.__wrapped__(name)
    assert torch.equal(torch.get_rng_state(), before)
    other = made.__wrapped__(name, seed=1) if name != "resnet50" else None
    for (key, tensor), same in zip(
        model.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, same), key
        if other and tensor.dim() > 1:
            assert not torch.equal(tensor, other.state_dict()[key]), key


class Words(nn.Module):
    """A language model of the kinds of layers that no shipped network has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 20)
        self.lstm = nn.LSTM(20, 30, num_layers=2)
        self.decoder = nn.Linear(30, 50)


def test_a_language_model_starts_as_its_paper_has_it() -> None:
    """Embedding and LSTM uniform to 0.1, biases too; the decoder is a layer of logits."""
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(Words())
        initialise(models[-1], last_gamma=0.0, seed=0)
    first, second = (model.state_dict() for model in models)
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key
        if not key.startswith("decoder."):
            assert 0.08 < tensor.abs().max() <= 0.1, key
            assert abs(tensor.mean()) < 5 * 0.1 / math.sqrt(3 * tensor.numel()), key
    assert_normal(first["decoder.weight"], std=0.01)
    assert not first["decoder.bias"].any()


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.PReLU(), "PReLU.weight"), (nn.LayerNorm(4), "LayerNorm.weight"),
     (nn.ParameterList([torch.zeros(2)]), "ParameterList.0")],
)  # fmt: skip
def test_a_layer_without_a_rule_is_an_error(layer: nn.Module, name: str) -> None:
    """Else it would start by torch's global generator, as its author may not notice."""
    with pytest.raises(
        TypeError, match=f"{name} has no initialisation rule, .* lsgd.models.initialise"
    ) as caught:
        initialise(nn.Sequential(nn.Linear(4, 4), layer), last_gamma=0.0, seed=0)
    assert "\n" not in str(caught.value)


def test_a_network_without_biases_or_linear_layers_starts_too() -> None:
    for layer in (nn.Conv2d(1, 2, 3, bias=False), nn.Linear(2, 3, bias=False)):
        before = layer.weight.detach().clone()
        initialise(nn.Sequential(layer), last_gamma=0.0, seed=0)
        assert not torch.equal(layer.weight, before)


def numbers(name: str) -> dict[str, list[float]]:
    """The first 8 numbers of the parameters, and of the logits' weights, which are drawn last."""
    weights: Iterator[Tensor] = (p for p in made(name).parameters() if p.dim() > 1)
    first, *_, last = weights
    return {
        key: [float(f"{number:.9g}") for number in weight.flatten()[:8].tolist()]
        for key, weight in (("parameters", first), ("logits", last))
    }


def test_networks_start_with_the_numbers_they_had() -> None:
    """`LSGD_WRITE_GOLDEN=1 pytest -k numbers_they_had` adds those of a new network.

    Equal to a millionth, since processors without AVX2 round the last bits of some otherwise.
    """
    started = {name: numbers(name) for name in NAMES}
    if os.environ.get("LSGD_WRITE_GOLDEN"):
        lines = [f'  "{name}": {json.dumps(row)}' for name, row in started.items()]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        pytest.skip(f"{GOLDEN} is written anew")
    golden = json.loads(GOLDEN.read_text())
    assert sorted(golden) == sorted(started)
    for name, row in started.items():
        for key, drawn in row.items():
            assert drawn == pytest.approx(golden[name][key], abs=1e-6), (name, key)


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


@pytest.mark.slow
@pytest.mark.timm
def test_the_preactivation_network_is_timms() -> None:
    """Its logits; the classes of timm's are a convolution of 1 x 1."""
    import timm

    model, theirs = made("resnet50_v2"), timm.create_model("resnetv2_50").eval()
    names = {"stages.": "layer", "blocks.": "", "norm": "bn", "downsample.conv": "shortcut.0"}
    names |= {"stem.conv": "conv1", "head.fc": "fc"}

    def ours(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return re.sub(r"layer(\d)", lambda found: f"layer{int(found[1]) + 1}", name)

    state = {ours(name): tensor for name, tensor in theirs.state_dict().items()}
    state["fc.weight"] = state["fc.weight"].flatten(1)
    own = make_model("resnet50_v2", classes=1000, channels=3, last_gamma=1.0, seed=0).eval()
    own.load_state_dict(state)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(own(images), theirs(images), rtol=1e-4, atol=1e-5)
    assert {n for n, p in model.named_parameters() if n.endswith("weight") and not p.any()} == {
        f"layer{i}.{j}.bn3.weight" for i, depth in enumerate((3, 4, 6, 3), 1) for j in range(depth)
    }


@pytest.mark.slow
def test_all_weights_of_the_preactivation_network_are_trained() -> None:
    """A gamma of 0 before the ReLU and the last convolution of a block would stop its gradients."""
    network = make_network(compose_recipe("+recipe=bs256", "model=resnet50_v2"))
    for layer in worker_batch_norms(network):
        layer.seen = torch.zeros(2, layer.num_features)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network(images).square().sum().backward()
    untrained = [name for name, weight in network.named_parameters() if not weight.grad.any()]
    assert untrained == []


def test_resnet50_strides_in_the_3x3_convolution() -> None:
    """Section 5.1; the original ResNet-50 strides in the 1x1."""
    strides = [getattr(made("resnet50"), f"layer{i}")[0] for i in (2, 3, 4)]
    assert [(b.conv1.stride, b.conv2.stride) for b in strides] == [((1, 1), (2, 2))] * 3


def test_complex_buffers_keep_their_imaginary_parts() -> None:
    """Of a network of one's own, such as the factors of rotary embeddings."""
    network = nn.Linear(2, 2)
    factors = torch.polar(torch.ones(4), torch.arange(4.0))
    network.register_buffer("factors", factors)
    converted(network, compose_recipe("+recipe=digits", "precision=float64"))
    assert network.weight.dtype == torch.float64
    assert torch.equal(network.factors, factors.to(torch.complex128))
    network.gain = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match="parameter gain is complex"):
        converted(network, compose_recipe("+recipe=digits"))


def test_embeddings_have_dense_gradients() -> None:
    """Those of a network of one's own too, since gradients are summed in dense buckets."""
    table = nn.Embedding(3, 2, sparse=True)
    converted(table, compose_recipe("+recipe=digits"))(torch.tensor([1])).sum().backward()
    assert table.weight.grad.tolist() == [[0, 0], [1, 1], [0, 0]]
