"""Checks of the network as it is built: its shape, and how its weights start."""

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lsgd.check.finding import Finding
from lsgd.learner import Learner
from lsgd.vision import models

BLOCKS = (models.resnet.Bottleneck, models.resnet.BasicBlock)


def findings(learner: Learner) -> list[Finding]:
    """The rules of section 5.1 about the layers that the network has, and how they start."""
    model = learner.model
    return [
        _model(learner),
        *([_stride(model)] if _blocks(model) else []),
        _conv_init(model),
        _fc_init(model),
        *(_gammas(model) if _norms(model.modules()) else []),
    ]


def _model(learner: Learner) -> Finding:
    built = _shapes(learner.model)
    count = sum(weight.numel() for weight in learner.model.parameters())
    return Finding(
        "model",
        "5.1",
        "ResNet-50, 161 tensors",
        f"{learner.recipe.model.name}: {count:,} parameters in {len(built) + 2} tensors",
        built == _resnet50(),
    )


@functools.cache
def _resnet50() -> dict[str, torch.Size]:
    with torch.device("meta"):
        return _shapes(models.resnet50())


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """The parameters' shapes without the head's: the number of classes is for the data to say."""
    return {n: weight.shape for n, weight in model.named_parameters() if not n.startswith("fc.")}


def _stride(model: nn.Module) -> Finding:
    """The stride of the convolutions within blocks; shortcuts are 1 x 1 in any network."""
    striding = {
        conv.kernel_size
        for block in _blocks(model)
        for conv in block.children()
        if isinstance(conv, nn.Conv2d) and conv.stride != (1, 1)
    }
    return Finding(
        "stride",
        "5.1",
        "stride 2 in the 3 x 3 convolution of a block",
        "stride 2 in convolutions of " + " and ".join(f"{a} x {b}" for a, b in sorted(striding)),
        striding == {(3, 3)},
    )


def _conv_init(model: nn.Module) -> Finding:
    """The start of the convolutions, and of the linear layers before the one of the logits."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linear = _linear(model)[:-1]
    layers: list[nn.Conv2d | nn.Linear] = [*convs, *linear]
    sides = ("out", "in")
    side = next((s for s in sides if all(_is_he(layer.weight, s) for layer in layers)), None)
    biased = any(layer.bias is not None and layer.bias.any() for layer in layers)
    return Finding(
        "conv_init",
        "5.1",
        "He: N(0, 2 / fan out)",
        f"{len(convs)} convolutions {f'and {len(linear)} linear layers ' if linear else ''}"
        + (f"as N(0, 2 / fan {side})" if side else "otherwise")
        + (", biases not 0" if biased else ""),
        side == "out" and not biased,
    )


def _fc_init(model: nn.Module) -> Finding:
    head = _linear(model)[-1]
    weights, biased = head.weight, bool(head.bias.any())
    bias = "and a bias that is not 0" if biased else "and bias 0"
    return Finding(
        "fc_init",
        "5.1",
        "N(0, 0.01²) and bias 0",
        f"standard deviation {weights.std():.2g}, mean {weights.mean():.1g}, {bias}",
        _is_normal(weights, 0.01) and not biased,
    )


def _gammas(model: nn.Module) -> list[Finding]:
    last = [_norms(block.children())[-1] for block in _blocks(model)]
    norms = _norms(model.modules())
    others = [m for m in norms if all(m is not each for each in last)]
    return [
        Finding(
            "last_gamma",
            "5.1",
            "0 in the last BN of each residual block",
            f"{_values([m.weight for m in last])} in the last BN of {len(last)} blocks",
            not any(m.weight.any() for m in last),
        ),
        Finding(
            "other_gammas",
            "5.1",
            "1, and all beta 0",
            f"{_values([m.weight for m in others])} in {len(others)} other BNs, and beta "
            f"{_values([m.bias for m in norms])}",
            all((m.weight == 1).all() for m in others) and not any(m.bias.any() for m in norms),
        ),
    ]


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, BLOCKS)]


def _norms(modules: Iterable[nn.Module]) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _linear(model: nn.Module) -> list[nn.Linear]:
    """The linear layers; the last one gives the logits."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


def _is_he(weight: Tensor, side: str) -> bool:
    """Whether a weight (out, in, …) starts as He's initialisation by the fan of this side."""
    fan = weight.shape[("out", "in").index(side)] * math.prod(weight.shape[2:])
    return _is_normal(weight, math.sqrt(2 / fan))


def _is_normal(weight: Tensor, std: float) -> bool:
    """Whether mean and standard deviation are within five of their own standard deviations."""
    weight = weight.detach().double()
    centred = abs(weight.mean()) < 5 * std / math.sqrt(weight.numel())
    return bool(centred and abs(weight.std() / std - 1) < 5 / math.sqrt(2 * weight.numel()))


def _values(tensors: list[Tensor]) -> str:
    low, high = (float(bound) for bound in torch.cat(tensors).detach().aminmax())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
