"""Observations of the built network: its layers and initial weights."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lsgd.check.observation import Observation
from lsgd.learner import Learner
from lsgd.models.blurpool import BlurredConv2d, BlurredMaxPool2d
from lsgd.models.preactivation_resnet import PreActivationBottleneck
from lsgd.rules.counter_dropout import counter_dropout_layers
from lsgd.tables import format_count
from lsgd.vision import models

BLOCKS = (models.resnet.Bottleneck, models.resnet.BasicBlock, PreActivationBottleneck)


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a network's layers and of their initial weights."""
    model = learner.model
    return [
        _model(learner),
        *([_stride(model)] if _blocks(model) else []),
        _blurpool(model),
        *_dropout(model),
        *observe_weights(_initial_weights(model, nn.Conv2d), _initial_weights(model, nn.Linear)),
        *([_last_gamma(model)] if _last_norms(model) else []),
        *([_other_gammas(model), _batchnorm_eps(model)] if norms_of(model.modules()) else []),
    ]


def _model(learner: Learner) -> Observation:
    built = _shapes(learner.model)
    count = sum(weight.numel() for weight in learner.model.parameters())
    return Observation(
        "model",
        f"{learner.recipe.model.name}: {count:,} parameters in {len(built) + 2} tensors",
        built == _resnet50(),
    )


@functools.cache
def _resnet50() -> dict[str, torch.Size]:
    with torch.device("meta"):
        return _shapes(models.resnet50())


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a network's parameters by name, without the classification layer's."""
    return {n: weight.shape for n, weight in model.named_parameters() if not n.startswith("fc.")}


def _stride(model: nn.Module) -> Observation:
    """Observe the kernel sizes of strided convolutions in residual blocks, without shortcuts."""
    striding = {
        conv.kernel_size
        for block in _blocks(model)
        for conv in block.children()
        if isinstance(conv, nn.Conv2d) and conv.stride != (1, 1)
    }
    return Observation(
        "stride",
        "stride 2 in convolutions of " + " and ".join(f"{a} x {b}" for a, b in sorted(striding)),
        striding,
    )


def _blurpool(model: nn.Module) -> Observation:
    """Observe the strided layers that are blurred: all that could be, by kind."""
    kinds = [type(module) for module in model.modules()]
    convs, pools = kinds.count(BlurredConv2d), kinds.count(BlurredMaxPool2d)
    run = f"{convs} convolutions and {pools} max-pools" if convs or pools else "none"
    return Observation("blurpool", run, (convs, pools))


def _dropout(model: nn.Module) -> list[Observation]:
    """Observe the rates of dropout and stochastic depth, if any layer has one."""
    rates = sorted(layer.rate for layer in counter_dropout_layers(model) if layer.rate)
    if not rates:
        return []
    ends = " to ".join(f"{rate:g}" for rate in dict.fromkeys((rates[0], rates[-1])))
    run = f"dropout or stochastic depth of {ends} in {format_count(len(rates), 'layer')}"
    return [Observation("dropout", run, rates)]


@dataclass(frozen=True)
class InitialWeights:
    """Statistics of the initial weights of a layer, of a recipe's network or a script's."""

    shape: Sequence[int]
    """The shape of the weights: (out, in, …)."""
    mean: float
    std: float
    has_bias: bool
    """Whether the layer has a bias that is not 0."""
    place: str = ""
    """The line of the script that makes the layer."""

    def are_normal(self, std: float) -> bool:
        """Return whether mean and spread are within five standard errors of N(0, std²)."""
        count = math.prod(self.shape)
        is_centred = abs(self.mean) < 5 * std / math.sqrt(count)
        return is_centred and abs(self.std / std - 1) < 5 / math.sqrt(2 * count)

    def are_he(self, side: str) -> bool:
        """Return whether they have He's initialisation, by fan "in" or fan "out"."""
        fan = self.shape[("out", "in").index(side)] * math.prod(self.shape[2:])
        return self.are_normal(math.sqrt(2 / fan))


def _initial_weights(model: nn.Module, kind: type[nn.Module]) -> Iterator[InitialWeights]:
    for layer in model.modules():
        if isinstance(layer, kind):
            # No parameter of the layer if it is parametrized, as by spectral_norm.
            weight, bias = cast(Tensor, layer.weight).detach().double(), layer.bias
            mean, std = weight.mean().item(), weight.std().item()
            has_bias = isinstance(bias, Tensor) and bool(bias.any())
            yield InitialWeights(weight.shape, mean, std, has_bias)


def observe_weights(
    convolutions: Iterable[InitialWeights], linear: Iterable[InitialWeights]
) -> Iterator[Observation]:
    """Observe how layers are initialised; the last linear layer, if any, computes the logits."""
    convolutions, linear = [*convolutions], [*linear]
    drawn = [*convolutions, *linear[:-1]]
    side = next((s for s in ("out", "in") if all(each.are_he(s) for each in drawn)), None)
    others = [each for each in drawn if not any(map(each.are_he, ("out", "in")))]
    biased = [each for each in drawn if each.has_bias]
    yield Observation(
        "conv_init",
        format_count(len(convolutions), "convolution")
        + (f" and {format_count(len(linear) - 1, 'linear layer')}" if linear[:-1] else "")
        + (f" as N(0, 2 / fan {side})" if side else " otherwise")
        + (", biases not 0" if biased else ""),
        None if biased else side,
        next((each.place for each in (*others, *biased, *drawn)), ""),
    )
    for head in linear[-1:]:
        yield Observation(
            "fc_init",
            f"standard deviation {head.std:.2g}, mean {head.mean:.1g}, and "
            + ("a bias that is not 0" if head.has_bias else "bias 0"),
            0.01 if head.are_normal(0.01) and not head.has_bias else None,
            head.place,
        )


def _last_gamma(model: nn.Module) -> Observation:
    gammas = [_gamma(norm) for norm in _last_norms(model)]
    return Observation(
        "last_gamma",
        f"{_values(gammas)} in the last norm of {len(gammas)} blocks",
        {float(each) for gamma in gammas for each in gamma.detach().unique()},
    )


def _gamma(norm: nn.Module) -> Tensor:
    return norm.get_parameter("weight")


def _other_gammas(model: nn.Module) -> Observation:
    last, norms = _last_norms(model), norms_of(model.modules())
    others = [m for m in norms if all(m is not each for each in last)]
    return Observation(
        "other_gammas",
        f"{_values([m.weight for m in others])} in {len(others)} other BNs, and beta "
        f"{_values([m.bias for m in norms])}",
        all((m.weight == 1).all() for m in others) and not any(m.bias.any() for m in norms),
    )


def _last_norms(model: nn.Module) -> list[nn.Module]:
    """Return the last norm layer of every residual block.

    Networks of libraries have a list of them in `last_norms`.
    """
    if (paths := getattr(model, "last_norms", None)) is not None:
        return [model.get_submodule(path) for path in paths]
    return [norms_of(block.children())[-1] for block in _blocks(model)]


def _batchnorm_eps(model: nn.Module) -> Observation:
    found = {norm.eps for norm in norms_of(model.modules())}
    return Observation("batchnorm_eps", " and ".join(f"{eps:g}" for eps in sorted(found)), found)


def _blocks(model: nn.Module) -> list[nn.Module]:
    # Blocks of timm are recognised by their method zero_init_last.
    known = [m for m in model.modules() if isinstance(m, BLOCKS) or hasattr(m, "zero_init_last")]
    return [block for block in known if norms_of(block.children())]


def norms_of(modules: Iterable[nn.Module]) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the BN layers among these modules."""
    return [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _values(tensors: list[Tensor]) -> str:
    if not tensors:
        return "nothing"
    low, high = (float(bound) for bound in torch.cat(tensors).detach().aminmax())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
