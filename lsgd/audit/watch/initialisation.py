"""The watch of a network's initial weights, and of its parameters over the processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd

from .record import Record, class_of, place

BLOCKS = ("Bottleneck", "BasicBlock")
"""The names of torchvision's residual blocks; those of timm have zero_init_last."""
CPU_PIECE, PIECE = 2**13, 2**22
"""The numbers of which a copy in 64 bits is made at once: on a CPU below glibc's 128 KiB of a block
of its own, and on other devices, where each piece is a launch, 32 MiB."""


class InitialisationWatch:
    """The watch of initial weights, and of checksums of parameters at the start and at the end."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.layers: list[dict[str, Any]] = []
        self.start: dict[str, int] = {}
        self.is_loaded = False

    def install(self) -> None:
        """Note where layers are made, and whether weights are loaded before the training."""
        for layer in (nn.Linear, _ConvNd, _NormBase):
            self.record.wrap(layer, "__init__", before=self._note_place)
        self.record.wrap(nn.Module, "load_state_dict", after=self._note_loading)

    def _note_place(self, module: nn.Module, *_: Any, **__: Any) -> None:
        # The module is not initialised yet, and its own __setattr__ may refuse attributes.
        object.__setattr__(module, "_audit_place", place())
        # A Trainer keeps methods of its libraries, but it is made after the network.
        self.record.watch_imported()

    def _note_loading(self, *_: Any, **__: Any) -> None:
        if not self.record.updates:
            self.is_loaded = True

    def begin(self) -> None:
        """Observe the network right before its first update."""
        model = self.record.model
        self.start = checksums(model)
        last_norms = {id(each) for each in _last_norms(model)}
        for module in model.modules():
            weight, kind = getattr(module, "weight", None), class_of(module)
            if not issubclass(kind, (nn.Linear, _ConvNd, _BatchNorm)):
                continue
            if is_average(module, self.record):
                continue
            if weight is None or not weight.numel() or hasattr(weight, "to_local"):
                continue
            bias = module.bias
            self.layers.append(
                {
                    "kind": "layer",
                    "type": "linear" if issubclass(kind, nn.Linear)
                    else "convolution" if issubclass(kind, _ConvNd) else "batchnorm",
                    "shape": list(weight.shape),
                    **statistics(weight.detach()),
                    "bias": bool(bias.detach().any()) if bias is not None else False,
                    "is_last_norm": id(module) in last_norms,
                    "eps": getattr(module, "eps", None),
                    "place": getattr(module, "_audit_place", ""),
                }
            )  # fmt: skip

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the statistics of each layer, and checksums of the parameters."""
        yield from self.layers
        if self.record.model is not None and self.start:
            end = checksums(self.record.model)
            yield {"kind": "checksums", "start": self.start, "end": end}
        yield {"kind": "loaded", "is_loaded": self.is_loaded}


def _last_norms(model: nn.Module) -> Iterator[nn.Module]:
    for block in model.modules():
        if type(block).__name__ in BLOCKS or hasattr(block, "zero_init_last"):
            norms = [each for each in block.children() if isinstance(each, _BatchNorm)]
            yield from norms[-1:]


def is_average(module: nn.Module, record: Record) -> bool:
    """Return whether a module is of an average of the weights which the network itself holds.

    Its parameters have no gradient, and no training pass calls it.
    """
    parameters = module.parameters(recurse=False)
    return id(module) not in record.called and all(each.grad is None for each in parameters)


def statistics(values: torch.Tensor) -> dict[str, float]:
    """Return the mean, standard deviation, minimum and maximum of a tensor's numbers."""
    count = values.numel()
    mean = sum(each.double().sum() for each in pieces(values)) / count
    squares = sum((each.double() - mean).square().sum() for each in pieces(values))
    return {
        "mean": float(mean), "std": math.sqrt(float(squares) / max(count - 1, 1)),
        "low": float(values.min()), "high": float(values.max()),
    }  # fmt: skip


def pieces(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a tensor's numbers in pieces, whose copies in 64 bits need little memory.

    A copy of a whole layer would change how glibc gives the memory of later updates: it keeps
    freed blocks of up to the largest size that was ever freed, and returns others to the system.
    """
    size = CPU_PIECE if values.device.type == "cpu" else PIECE
    parts: tuple[torch.Tensor, ...] = values.contiguous().view(-1).split(size)
    return parts


def checksums(model: nn.Module) -> dict[str, int]:
    """Return an exact checksum of each parameter of a network that is whole in this process."""
    sums = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "to_local") or not parameter.numel():
            continue  # those of FSDP2 and ZeRO differ by design
        size = parameter.element_size()
        if integer := {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size):
            whole = parameter.detach().contiguous().view(integer)
            sums[name] = int(sum(each.sum(dtype=torch.int64) for each in pieces(whole)))
    return sums
