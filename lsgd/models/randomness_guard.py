"""A guard that finds random numbers which do not depend on the example alone."""

import math
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lsgd.errors import UsageError

T = TypeVar("T")


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed Python's and numpy's global random generators, and restore their states at the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def without_global_draws(part: str, fix: str, call: Callable[[], T]) -> T:
    """Call a function of the user's own; raise UsageError if it draws from a global generator.

    These are Python's and numpy's. A function that seeds a generator before each draw leaves it in
    the same state from any other one, which a second call shows.
    """
    ends: list[list[bytes]] = []
    for seed in (0, 1):
        with seeded_generators(seed):
            begin = _generator_states()
            result = call()
            ends.append(_generator_states())
        if ends == [begin]:
            return result
    for name, *states in zip(("random", "numpy.random"), begin, *ends, strict=True):
        if states[0] != states[2] != states[1]:
            raise UsageError(
                f"{part} draws random numbers in its own forward pass ({name}), which do not "
                f"depend on the example alone; {fix}"
            )
    return result


def _generator_states() -> list[bytes]:
    """Return the states of the global generators of Python and numpy."""
    return [pickle.dumps(random.getstate()), pickle.dumps(np.random.get_state())]


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
