"""Dropout and stochastic depth as functions of (seed, epoch, example), as layers of a network.

The layers of a library draw from torch's global generator, so that what an image meets depends on
which images and processes came before it. These draw by the counters of lsgd.rules.philox, on the
device that the numbers are needed on.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from lsgd.rules.sampler import Pass

LAYER, LAYERS = 64, 4096
"""The last word of the counter of a network's first layer that draws, of at most so many: the next
layer has the next word, and a layer that is called again in a pass that of so many further on."""
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def words(c0: Tensor, c1: Tensor, c2: Tensor, c3: int, key: int) -> tuple[Tensor, ...]:
    """The four words that lsgd.rules.philox.words has for these counters, as int64 on a device."""
    counter = (*torch.broadcast_tensors(c0, c1, c2), torch.full_like(c2, c3))
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = map(_product, _MULTIPLIERS, (counter[0], counter[2]))
        counter = (high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0)
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return counter


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and lower 32 bits of a product of 64, of which int64 has one too few: by halves."""
    lower, upper = multiplier * (word & 0xFFFF), multiplier * (word >> 16)
    middle = upper + (lower >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (lower & 0xFFFF)


def kept(draws: Tensor, places: int, rate: float, *, layer: int, seed: int) -> Tensor:
    """Whether each place of each example is kept, with the probability 1 - rate: a bool tensor
    (examples, places).

    `draws` has the ids of the examples and, for each, the epoch: shape (2, examples).
    """
    examples, epochs = draws[:, :, None]
    fours = torch.arange(-(-places // 4), device=draws.device)
    drawn = words(examples, epochs, fours, LAYER + layer, seed)
    # Of each counter the four words side by side.
    return torch.stack(drawn, -1).flatten(1)[:, :places] >= math.ceil(rate * 2**32)


class Drawn(nn.Module):
    """Sets numbers to 0 in training, and divides the others by the share that is kept.

    By the place of each number in its example (Srivastava et al. 2014), or, with `whole`, all
    numbers of an example at once, which skips a residual block (Huang et al. 2016).
    """

    draws: Tensor
    calls: int = 0
    """How often it has been called in this pass, as some blocks call one layer for two branches."""

    def __init__(
        self, rate: float, *, layer: int, seed: int, whole: bool = False, scaled: bool = True
    ) -> None:
        super().__init__()
        self.rate, self.whole, self.layer = rate, whole, layer
        self.kept = partial(kept, rate=rate, seed=seed)
        self.scale = 1 / (1 - rate) if scaled and rate < 1 else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Numbers (examples, …), the examples being those of the pass that has been begun."""
        if not self.training:
            return x
        places = 1 if self.whole else math.prod(x.shape[1:])
        layer = self.layer + self.calls * LAYERS
        self.calls += 1
        mask = self.kept(self.draws, places, layer=layer).to(x.dtype) * self.scale
        return x * mask.view(len(x), *([1] * (x.dim() - 1) if self.whole else x.shape[1:]))

    def extra_repr(self) -> str:
        """The rate, as it stands in a printed network."""
        return f"rate={self.rate:g}" + ", whole" * self.whole


class Draws:
    """Lets the layers of a model that draw know whose numbers they draw; it carries nothing along.

    `seen`, which other parts push to servers, is empty.
    """

    name = "draws"

    def __init__(self, layers: list[Drawn], device: torch.device) -> None:
        self.layers, self.device = layers, device
        self.seen = torch.empty(0, device=device)

    def start_pass(self, each: Pass) -> None:
        """Hand the examples of the coming pass, and its epoch, to every layer."""
        draws = torch.from_numpy(each.examples).repeat(2, 1)
        draws[1] = each.epoch or 0
        if self.device.type == "cuda":
            draws = draws.pin_memory()  # which is not waited for
        draws = draws.to(self.device, non_blocking=True)
        for layer in self.layers:
            layer.draws, layer.calls = draws, 0

    def end_step(self, active_workers: int) -> None:
        """Nothing moves."""

    def settle(self, sum_: object) -> None:
        """Nothing is to be written into the model."""

    def state(self, sum_: object) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Nothing is taken up."""


def drawn_layers(model: nn.Module) -> list[Drawn]:
    """The layers of a model that draw by example; there may be none."""
    return [module for module in model.modules() if isinstance(module, Drawn)]
