"""Any network of torchvision or timm keeps the rules of a worker, or is refused by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.capabilities import require_capability
from helpers.composed import compose_recipe
from torch import nn

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.models import make_network
from lsgd.models.library_networks import check_library_network
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm, worker_batch_norms
from lsgd.rules.counter_dropout import counter_dropout_layers
from lsgd.rules.optim import parameter_groups
from lsgd.rules.sampler import MicroBatch
from lsgd.vision import models
from lsgd.workloads.images import ImageClassification

CPU = torch.device("cpu")
SMALL = ["+recipe=bs256", "data=tiny_imagenet", "data.image_size=32", "data.classes=7"]


def of(network: str, *words: str) -> Recipe:
    if network.startswith("timm/"):
        require_capability("timm")
    return compose_recipe(*SMALL, f"model={network}", *words)


def trained(made: Recipe, images: torch.Tensor, ids: list[int], workers: range) -> Any:
    """The network after a pass in training, its logits, and what its norms have seen."""
    workload = ImageClassification(made, CPU)
    network = workload.network().train()
    parts = workload.carried_states(network, range(made.workers), SingleComm())
    examples = np.array(ids, dtype=np.int64)
    for part in parts:
        part.start_micro_batch(MicroBatch(0, examples, workers, 0, "train"))
    return network, network(images), parts


@pytest.mark.slow
def test_without_what_ours_are_it_is_the_library_s() -> None:
    """Names, weights by its own start, and the logits of an evaluation."""
    torch.manual_seed(3)
    theirs = models.resnet18(num_classes=7).double()
    ours = make_network(of("torchvision/resnet18", "seed=3", "model.last_gamma=1.0",
                           "precision=float64"))  # fmt: skip
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], tensor), key
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.slow
def test_the_seed_alone_starts_it_and_torch_s_generator_stays() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, same, other = (
        make_network(of("timm/resnet10t", f"seed={seed}")).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "gamma", "blocks"),
    [
        ("torchvision/resnet18", 0.25, 8),
        ("timm/resnet10t", 0.0, 4),
        ("timm/resnet10t", 0.25, 4),
        ("timm/regnety_002", 0.25, 13),
        ("timm/efficientnet_b0", 0.25, 9),
    ],
)
def test_last_gammas(network: str, gamma: float, blocks: int) -> None:
    """As many as there are blocks, and no other."""
    made = make_network(of(network, f"model.last_gamma={gamma}"))
    gammas = [norm.weight[0].item() for norm in worker_batch_norms(made)]
    assert sorted(gammas) == [gamma] * blocks + [1.0] * (len(gammas) - blocks)


@pytest.mark.slow
def test_last_gammas_of_norms_that_are_no_bn() -> None:
    made = make_network(of("torchvision/swin_v2_t", "model.last_gamma=0.25"))
    gammas = [m.weight[0].item() for m in made.modules() if isinstance(m, nn.LayerNorm)]
    assert gammas.count(0.25) == 2 * sum((2, 2, 6, 2))


@pytest.mark.slow
def test_blocks_that_end_in_a_convolution_start_as_their_library_has_them() -> None:
    made = make_network(of("timm/resnetv2_18"))
    assert all(m.weight.any() for m in made.modules() if isinstance(m, nn.Conv2d))
    with pytest.raises(UsageError, match=r"last_gamma=0\.5 needs residual blocks"):
        make_network(of("timm/resnetv2_18", "model.last_gamma=0.5"))


@pytest.mark.slow
def test_every_norm_is_a_worker_s_also_with_an_activation_and_of_one_dimension() -> None:
    made = make_network(of("timm/efficientnet_b0"))
    norms = [m for m in made.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(norm, WorkerBatchNorm) for norm in norms)
    import timm

    theirs = timm.create_model("efficientnet_b0", num_classes=7)
    assert made.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(made.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(made.eval()(images), theirs.eval()(images))
    flat = make_network(of("timm/levit_128s", "data.image_size=224"))
    assert {m.weight.dim() for m in worker_batch_norms(flat)} == {1}
    assert any(isinstance(m, nn.BatchNorm1d) for m in worker_batch_norms(flat))


@pytest.mark.slow
def test_two_workers_in_a_pass_are_those_of_two_passes() -> None:
    """BN, dropout and skipped blocks: the logits of each image, in float64."""
    made = of("timm/efficientnet_b0", "precision=float64", "worker_batch=4", "workers=2",
              "model.options.drop_path_rate=0.3")  # fmt: skip
    assert counter_dropout_layers(make_network(made))
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64)
    ids = list(range(40, 48))
    _, together, _ = trained(made, images, ids, range(2))
    for worker in range(2):
        _, apart, _ = trained(made, images[worker::2], ids[worker::2], range(worker, worker + 1))
        torch.testing.assert_close(together[worker::2], apart, rtol=1e-10, atol=1e-10)


def undecayed(network: str, *words: str) -> set[str]:
    made = make_network(of(network, *words))
    names = {parameter: name for name, parameter in made.named_parameters()}
    still, decayed = parameter_groups(made, 1e-4)[::-1]
    assert (still["weight_decay"], decayed["weight_decay"]) == (0.0, 1e-4)
    products = {m.weight for m in made.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert products <= set(decayed["params"])
    return {names[parameter] for parameter in still["params"]}


def test_norms_and_layer_scales_do_not_decay() -> None:
    names = undecayed("timm/convnext_atto")
    assert {"stem.1.weight", "stem.1.bias", "stages.0.blocks.0.gamma"} <= names
    assert not any("conv" in name for name in names)


@pytest.mark.slow
def test_position_embeddings_and_tokens_do_not_decay() -> None:
    names = undecayed("torchvision/vit_b_16")
    assert {"class_token", "encoder.pos_embedding"} <= names
    assert "encoder.layers.encoder_layer_0.self_attention.in_proj_bias" not in names


@pytest.mark.slow
def test_two_workers_of_tokens_in_a_pass_are_those_of_two_passes() -> None:
    """Logits and gradient, where BN is given the tokens of all images as rows."""
    made = of("timm/levit_128s", "precision=float64", "worker_batch=3", "workers=2",
              "data.image_size=64")  # fmt: skip
    images, ids = torch.randn(6, 3, 64, 64, dtype=torch.float64), list(range(6))
    network, together, _ = trained(made, images, ids, range(2))
    assert {norm.rows_per_image for norm in worker_batch_norms(network)} == {1, 16, 4}
    together.square().sum().backward()
    sums = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for worker in range(2):
        other, apart, _ = trained(
            made, images[worker::2], ids[worker::2], range(worker, worker + 1)
        )
        torch.testing.assert_close(together[worker::2], apart, rtol=1e-9, atol=1e-9)
        apart.square().sum().backward()
        for gradient, parameter in zip(sums, other.parameters(), strict=True):
            gradient += parameter.grad
    for gradient, parameter in zip(sums, network.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", ["torchvision/resnet18", "torchvision/squeezenet1_1", "timm/vit_tiny_patch16_224"]
)
def test_taken(network: str) -> None:
    check_library_network(of(network))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torchvision/resnet81"], "does not exist; did you mean resnet18"),
        (["torchvision/alexnet"], r"does not take images of 3 x 32 x 32 \("),
        (["torchvision/resnet18", "model.options.width=2"], "cannot be built with .*'width'"),
        (["timm/convnext_atto", "model.last_gamma=1.0"], "last_gamma=1 needs residual blocks"),
        (
            ["timm/vit_tiny_patch16_224", "model.options.attn_drop_rate=0.1"],
            r"draws random numbers in blocks\.0\.attn",
        ),
        (["timm/resnet10t", "model.options.drop_rate=0.1"], "draws random numbers"),
        (["timm/resnet10t", "model.options.act_layer=foo"], "cannot be built with .*'foo'"),
        *(
            ([name, f"model.options.{option}"], r"fetch or load weights.*leave it out")
            for name, option in (
                ("timm/resnet10t", "checkpoint_path=evil.pth"),
                ("timm/resnet10t", "pretrained=false"),
                ("timm/resnet10t", "pretrained_cfg=evil"),
                ("torchvision/resnet18", "weights=DEFAULT"),
            )
        ),
    ],
)
def test_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_library_network(of(*words))


class Odd(nn.Module):
    """A network of our own that stands for one of a library."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 7)
        self.norm = nn.BatchNorm3d(4) if kind == "volume" else nn.Identity()
        self.drop, self.rows = nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        match self.kind:
            case "tokens":
                x = self.rows(x.flatten(2).mT.flatten(0, 1)).unflatten(0, (len(x), -1)).mT
            case "places":
                rows = self.rows(x.flatten(2).permute(2, 0, 1).flatten(0, 1))
                x = rows.unflatten(0, (-1, len(x))).permute(1, 2, 0)
            case "mean":
                self.rows(x.flatten(2).mean(0).mT)
            case "seven":
                self.rows(x.flatten(2).mean(0).mT[:7])
        x = x.flatten(2).mean(2)
        if self.kind == "buffer":
            self.count += 1
        x = self.drop(x.t()).t() if self.kind == "turned" else self.drop(x)
        return (self.fc(x), x) if self.kind == "several" else self.fc(x)


def test_tokens_of_a_training_size_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of 3 x 3 have one token here, and those of 4 x 4 four."""
    monkeypatch.setattr("lsgd.models.library_networks._build", lambda recipe: Odd("tokens"))
    sizes = ["image_sizes.points=[[0,5],[2,3]]", "image_sizes.multiple=1"]
    made = of("torchvision/resnet18", *sizes)
    check_library_network(replace(made, data=replace(made.data, image_size=4)))
    with pytest.raises(UsageError, match="normalises in rows 4 rows for each image of 4 x 4, and"):
        check_library_network(replace(made, data=replace(made.data, image_size=3)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("plain", None),
        ("tokens", None),
        ("places", "normalises in rows rows in which those of an image are not adjacent"),
        ("mean", "normalises in rows rows in which those of an image are not adjacent"),
        ("seven", "normalises in rows 7 rows for 5 images"),
        ("buffer", "changes count in every forward pass"),
        ("turned", "has dropout in drop on a tensor without a row for each image"),
        ("several", "gives tuple for 5 images of 7 classes"),
        ("volume", "normalises by BatchNorm3d in norm"),
    ],
)
def test_what_meets_other_images_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, message: str | None
) -> None:
    monkeypatch.setattr("lsgd.models.library_networks._build", lambda recipe: Odd(kind))
    made = of("torchvision/resnet18")

    if message is None:
        check_library_network(made)
        make_network(made)
        return
    # Before the run has a folder, which it has when the network is made.
    with pytest.raises(UsageError, match=message):
        check_library_network(made)
