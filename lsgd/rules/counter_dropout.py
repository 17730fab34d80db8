"""Dropout and stochastic depth as layers that are functions of (seed, epoch, example).

Layers of a library draw from torch's global generator, so that the mask of an image depends on
earlier images and on processes. These layers draw from the counters of lsgd.rules.philox, on the
device that needs the numbers.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.rules.backward import in_backward
from lsgd.rules.sampler import MicroBatch

FIRST_LAYER_COUNTER, MAX_LAYERS = 64, 4096
"""The counter's last element for the first dropout layer, and the maximum number of layers.

The next layer uses the next number; each further call of a layer in a micro-batch adds the maximum.
"""
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def uint32_blocks(c0: Tensor, c1: Tensor, c2: Tensor, c3: int, key: int) -> tuple[Tensor, ...]:
    """Return four random 32-bit integers per Philox counter, computed on its device as int64."""
    counter = (*torch.broadcast_tensors(c0, c1, c2), torch.full_like(c2, c3))
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = map(_product, _MULTIPLIERS, (counter[0], counter[2]))
        counter = (high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0)
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return counter


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and lower 32 bits of 32 x 32 bit products, which would overflow int64."""
    lower, upper = multiplier * (word & 0xFFFF), multiplier * (word >> 16)
    middle = upper + (lower >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (lower & 0xFFFF)


def keep_mask(draws: Tensor, places: int, rate: float, *, layer: int, seed: int) -> Tensor:
    """Draw a dropout mask, shape (examples, places), that keeps with the probability 1 - rate.

    `draws` holds the ids of the examples and, for each, the epoch: shape (2, examples).
    """
    examples, epochs = draws[:, :, None]
    fours = torch.arange(-(-places // 4), device=draws.device)
    drawn = uint32_blocks(examples, epochs, fours, FIRST_LAYER_COUNTER + layer, seed)
    # The four numbers of each counter become adjacent places.
    return torch.stack(drawn, -1).flatten(1)[:, :places] >= math.ceil(rate * 2**32)


class CounterBasedDropout(nn.Module):
    """A dropout layer whose masks depend only on (seed, epoch, example).

    It drops single numbers of an example (Srivastava et al. 2014), or, if `per_example`, all
    numbers of an example at once, which skips a residual block (Huang et al. 2016). Kept numbers
    are divided by the kept share if `scaled`.
    """

    draws: Tensor | None = None
    """The ids and epochs of the examples of this micro-batch; None before the first one."""
    is_frozen: bool = False
    """Whether this layer stays in evaluation mode."""
    path: str = ""
    """The name of this layer in its network."""
    calls: int = 0
    """The number of calls in this micro-batch; some blocks call one layer for two branches."""

    def __init__(
        self, rate: float, *, layer: int, seed: int, per_example: bool = False, scaled: bool = True
    ) -> None:
        nn.Module.__init__(self)  # and not that of nn.Dropout, for ReplacedDropout
        self.per_example, self.layer = per_example, layer
        self.seed, self.scaled = seed, scaled
        self.p = rate

    # The argument has its name in torch's own layer, which a caller may write.
    def forward(self, input: Tensor) -> Tensor:
        """Apply dropout to (examples, …), those of the current micro-batch."""
        if not self.training or not self.rate:
            return input
        draws = self.draws
        if draws is None or input.shape[0] != draws.shape[1]:
            raise self._wrong_rows(input)
        places = 1 if self.per_example else math.prod(input.shape[1:])
        layer = self.layer
        if self.calls:  # so that an ordinary call asks for no backward pass
            layer += self._further_call() * MAX_LAYERS
        else:
            self.calls = 1
        mask = self.keep_mask(draws, places, layer=layer).to(input.dtype) * self.scale
        ones = [1] * (input.dim() - 1)
        return input * mask.view(len(input), *(ones if self.per_example else input.shape[1:]))

    @property
    def p(self) -> float:
        """The rate, by the name that it has in torch's own layer."""
        return self.rate

    @p.setter
    def p(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise UsageError(f"the dropout rate p={rate} must be from 0 to 1")
        self.rate = rate
        self.keep_mask = partial(keep_mask, rate=rate, seed=self.seed)
        self.scale = 1 / (1 - rate) if self.scaled and rate < 1 else 1.0

    drop_prob = p
    """The rate, by the name that it has in the DropPath of timm and transformers."""

    def _wrong_rows(self, x: Tensor) -> UsageError:
        """Return the error of an input without a row for each example of the micro-batch."""
        layer = f"the dropout layer {self.path} of rate {self.rate:g}"
        if self.draws is None:
            return UsageError(
                f"{layer} is called in training mode before the first step, and draws masks for "
                "the examples of a step alone; call model.eval() first"
            )
        return UsageError(
            f"{layer} gets {len(x)} rows for the {self.draws.shape[1]} examples of a micro-batch, "
            "and draws a mask for each; put the examples first in its input, and call "
            "model.eval() outside of steps"
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this layer: training, or evaluation, which a frozen layer always has."""
        return super().train(mode and not self.is_frozen)

    def _further_call(self) -> int:
        """Return the number of a call that is not the first one of this micro-batch, from 0.

        Activation checkpointing makes the first call again, from the backward pass. Raises
        UsageError if there were several, since the order of the backward pass is another.
        """
        if not in_backward():
            self.calls += 1
            return self.calls - 1
        if self.calls > 1:
            raise UsageError(
                f"the dropout layer {self.path} of rate {self.rate:g} was called {self.calls} "
                "times in a micro-batch and is called again by activation checkpointing, which "
                "must draw the same mask; use a layer for each call, or leave the checkpoint out"
            )
        return 0

    def extra_repr(self) -> str:
        """Return the rate and kind of this dropout layer for the printed model."""
        return f"rate={self.rate:g}" + ", whole" * self.per_example


class ReplacedDropout(CounterBasedDropout, nn.Dropout):
    """A CounterBasedDropout that a program finds by `isinstance(layer, nn.Dropout)`."""

    inplace = False
    """The setting of torch's layer, which this one ignores."""


class CounterBasedDraws:
    """The carried state, never saved, that sets example ids and epoch on dropout layers.

    Its `pending_update`, which strategies push to servers, is empty.
    """

    name = "draws"

    def __init__(
        self, layers: list[CounterBasedDropout], send: Callable[[NDArray[np.int64]], Tensor]
    ) -> None:
        """Store the dropout layers and the function `send` that copies arrays to their device."""
        self.layers, self.send = layers, send
        self.pending_update = send(np.empty(0, np.int64))

    def start_micro_batch(self, each: MicroBatch) -> None:
        """Set the next micro-batch's example ids and epoch on every dropout layer."""
        epochs = np.full_like(each.examples, each.epoch or 0)
        draws = self.send(np.stack((each.examples, epochs)))
        for layer in self.layers:
            layer.draws, layer.calls = draws, 0

    def end_step(self, active_workers: int) -> None:
        """Do nothing, since dropout masks need no state that a step could update."""

    def write_to_model(self, sum_: object) -> None:
        """Do nothing, since dropout masks need no state in the model."""

    def state(self, sum_: object) -> dict[str, Tensor]:
        """Return an empty state, since dropout masks follow from (seed, epoch, example)."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Do nothing, since dropout masks need no saved state."""


def dropout_rate(module: nn.Module) -> float | None:
    """Return a dropout or stochastic-depth layer's rate in training; None for any other layer.

    Known are torch's layer and those of torchvision, timm and transformers.
    """
    kind = type(module)
    library = kind.__module__.partition(".")[0]
    if kind is nn.Dropout:
        return float(module.p)  # type: ignore[arg-type]
    if kind.__name__.endswith("DropPath") and library in ("timm", "transformers"):
        return float(module.drop_prob or 0)  # type: ignore[arg-type]
    if kind.__name__ == "StochasticDepth" and module.mode == "row":
        return float(module.p)  # type: ignore[arg-type]
    return None


def replace_dropout(
    network: nn.Module, *, seed: int, may_change: bool = False
) -> dict[nn.Module, CounterBasedDropout]:
    """Replace the dropout and stochastic-depth layers of a network by counter-based ones.

    If their rates `may_change` later, those of rate 0 are replaced too, and torch's own by layers
    that a program finds as such. Returns the new layer of each layer that was replaced, which has
    its mode.
    """
    rates = {module: (path, dropout_rate(module)) for path, module in network.named_modules()}
    # Layers of rate 0 come last, and the masks of the others do not depend on them.
    found = [(*of_module, module) for module, of_module in rates.items() if of_module[1]]
    if may_change:
        found += [(*of_module, module) for module, of_module in rates.items() if of_module[1] == 0]
    ours: dict[nn.Module, CounterBasedDropout] = {}
    for path, rate, module in found:
        whole = type(module) is not nn.Dropout
        scaled = bool(getattr(module, "scale_by_keep", True))
        kind = ReplacedDropout if may_change and not whole else CounterBasedDropout
        ours[module] = kind(
            rate or 0.0, layer=len(ours), seed=seed, per_example=whole, scaled=scaled
        )
        ours[module].path = path
        ours[module].train(module.training)
    replace_layers(network, ours)
    return ours


def replace_layers(network: nn.Module, others: Mapping[nn.Module, nn.Module]) -> None:
    """Put other layers in the place of some layers of a network, wherever these occur."""
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if module in others:
            above, _, name = path.rpartition(".")
            setattr(network.get_submodule(above), name, others[module])


def counter_dropout_layers(model: nn.Module) -> list[CounterBasedDropout]:
    """Return the counter-based dropout layers of a model; there may be none."""
    return [module for module in model.modules() if isinstance(module, CounterBasedDropout)]
