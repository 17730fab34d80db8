"""Observations of the built network: its layers and initial weights."""

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lsgd.check.observation import Observation
from lsgd.learner import Learner
from lsgd.models.blurpool import BlurredConv2d, BlurredMaxPool2d
from lsgd.models.preactivation_resnet import PreActivationBottleneck
from lsgd.vision import models

BLOCKS = (models.resnet.Bottleneck, models.resnet.BasicBlock, PreActivationBottleneck)


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a network's layers and of their initial weights."""
    model = learner.model
    return [
        _model(learner),
        *([_stride(model)] if _blocks(model) else []),
        _blurpool(model),
        _conv_init(model),
        *([_fc_init(model)] if _linear(model) else []),
        *([_last_gamma(model)] if _last_norms(model) else []),
        *([_other_gammas(model), _batchnorm_eps(model)] if _norms(model.modules()) else []),
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


def _conv_init(model: nn.Module) -> Observation:
    """Observe how convolutions, and linear layers other than the last, are initialised."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linear = _linear(model)[:-1]
    layers: list[nn.Conv2d | nn.Linear] = [*convs, *linear]
    sides = ("out", "in")
    side = next((s for s in sides if all(_is_he(layer.weight, s) for layer in layers)), None)
    biased = any(layer.bias is not None and layer.bias.any() for layer in layers)
    return Observation(
        "conv_init",
        f"{len(convs)} convolutions {f'and {len(linear)} linear layers ' if linear else ''}"
        + (f"as N(0, 2 / fan {side})" if side else "otherwise")
        + (", biases not 0" if biased else ""),
        None if biased else side,
    )


def _fc_init(model: nn.Module) -> Observation:
    head = _linear(model)[-1]
    weights, biased = head.weight, head.bias is not None and bool(head.bias.any())
    bias = "and a bias that is not 0" if biased else "and bias 0"
    return Observation(
        "fc_init",
        f"standard deviation {weights.std():.2g}, mean {weights.mean():.1g}, {bias}",
        0.01 if _is_normal(weights, 0.01) and not biased else None,
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
    last, norms = _last_norms(model), _norms(model.modules())
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
    return [_norms(block.children())[-1] for block in _blocks(model)]


def _batchnorm_eps(model: nn.Module) -> Observation:
    found = {norm.eps for norm in _norms(model.modules())}
    return Observation("batchnorm_eps", " and ".join(f"{eps:g}" for eps in sorted(found)), found)


def _blocks(model: nn.Module) -> list[nn.Module]:
    # Blocks of timm are recognised by their method zero_init_last.
    known = [m for m in model.modules() if isinstance(m, BLOCKS) or hasattr(m, "zero_init_last")]
    return [block for block in known if _norms(block.children())]


def _norms(modules: Iterable[nn.Module]) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _linear(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a network; the last one computes the logits."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


def _is_he(weight: Tensor, side: str) -> bool:
    """Return whether a weight (out, in, …) has He's initialisation, by its fan in or fan out."""
    return _is_normal(weight, he_std(weight.shape, side))


def he_std(shape: Sequence[int], side: str) -> float:
    """Return the standard deviation of He's initialisation of a weight of shape (out, in, …)."""
    fan = shape[("out", "in").index(side)] * math.prod(shape[2:])
    return math.sqrt(2 / fan)


def _is_normal(weight: Tensor, std: float) -> bool:
    weight = weight.detach().double()
    return is_normal_sample(weight.mean().item(), weight.std().item(), weight.numel(), std)


def is_normal_sample(mean: float, spread: float, count: int, std: float) -> bool:
    """Return whether a sample's mean and spread are within five standard errors of N(0, std²)."""
    centred = abs(mean) < 5 * std / math.sqrt(count)
    return centred and abs(spread / std - 1) < 5 / math.sqrt(2 * count)


def _values(tensors: list[Tensor]) -> str:
    if not tensors:
        return "nothing"
    low, high = (float(bound) for bound in torch.cat(tensors).detach().aminmax())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
