"""A guard that finds random numbers which do not depend on the example alone."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lsgd.errors import UsageError


class RandomnessGuard(TorchDispatchMode):
    """A torch dispatch mode that raises UsageError for random numbers outside dropout layers.

    The refusal names the layer that draws them.
    """

    # Otherwise torch rejects operators such as flex_attention within the context.
    supports_higher_order_operators = True

    def __init__(
        self,
        part: str,
        fix: str,
        network: nn.Module,
        drawing: set[nn.Module],
        *,
        allows_generators: bool = False,
    ) -> None:
        """Guard a network whose layers in `drawing` may draw random numbers.

        `part` is the override that chose the network and `fix` the advice, for the refusal. With
        `allows_generators` all code may draw from generators of its own.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.part, self.fix, self.network, self.drawing = part, fix, network, drawing
        self.allows_generators = allows_generators
        self.inside: list[nn.Module] = []
        self.calls: dict[nn.Module, list[int]] = {}

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Track the layer that runs, and dropout layers' input rows, during this context."""
        with ExitStack() as hooks:
            for module in self.network.modules():
                hooks.enter_context(module.register_forward_pre_hook(self._enter))
                hooks.enter_context(module.register_forward_hook(self._leave))
            yield

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inside.append(module)
        if module in self.drawing:
            self.calls.setdefault(module, []).append(len(inputs[0]))

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inside.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch operation; raise UsageError for random numbers outside dropout layers."""
        keywords = kwargs or {}
        draws = (
            torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
            and _dropout_rate(func, args, keywords) != 0
            and not (self.allows_generators and keywords.get("generator"))
        )
        if draws and not self.drawing.intersection(self.inside):
            names = {module: path for path, module in self.network.named_modules()}
            where = names[self.inside[-1]] if self.inside else ""
            raise UsageError(
                f"{self.part} draws random numbers in {where or 'its own forward pass'} "
                f"({func.name().removeprefix('aten::')}), which do not depend on the example "
                f"alone; {self.fix}"
            )
        return func(*args, **keywords)


def _dropout_rate(func: Any, args: Any, keywords: dict[str, Any]) -> float:
    """Return the dropout rate among a torch operation's arguments, or NaN if it has none.

    Attention and the LSTMs of GPUs have one; a rate of 0 means that they draw nothing.
    """
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "p", "dropout"):
            value = args[place] if place < len(args) else keywords.get(argument.name)
            value = argument.default_value if value is None else value
            return math.nan if value is None else float(value)
    return math.nan
