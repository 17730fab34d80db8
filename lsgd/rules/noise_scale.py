"""The gradient noise scale, estimated from micro-batch gradients (McCandlish et al. 2018).

Let the gradient of an example have the mean G and the covariance Σ. The expected squared norm of
the mean gradient of b examples is |G|² + tr Σ / b (appendix A.1). Let a step have B examples in
micro-batches of b_1, b_2, …, and let g_p be the summed gradient of micro-batch p over B. Then:

    E of the sum of all |g_p|²      S = |G|² f + tr Σ / B      f = sum of all (b_p / B)²
    E of |the sum of all g_p|²      T = |G|²   + tr Σ / B

The estimates of |G|² and tr Σ from S and T are unbiased for any micro-batch sizes. Their quotient
B_simple is the minibatch size at which noise and gradient are equal (equation 2.9). Sums over steps
give means of both.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.rules.exact_norm import exact_norm

STATE_KEY, SUM_COUNT = "noise", 5
"""The key of the noise sums in a state, and their number: S, T, f, steps and 1 / B."""


class NoiseScaleSums:
    """The sums over steps from which the gradient noise scale is computed, without a host sync.

    Each process adds the squared norms and shares of its own micro-batches. Process 0, which has
    examples in every step, also adds the values of the whole step.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], sums: Tensor, *, whole_steps: bool
    ) -> None:
        self.sums, self.whole_steps = sums, whole_steps
        self.norms: dict[int, Tensor] = {}
        for number, parameter in enumerate(parameters):
            # The hook gets a micro-batch's gradient before it is accumulated, without a copy.
            parameter.register_hook(partial(self._seen, number))

    def _seen(self, parameter: int, gradient: Tensor) -> None:
        if parameter in self.norms:
            raise UsageError(
                f"a parameter of shape {tuple(gradient.shape)} got two gradients in one backward "
                "pass, as from two checkpoints that share it, and the noise scale needs their sum; "
                "pass use_reentrant=False to torch.utils.checkpoint"
            )
        self.norms[parameter] = exact_norm(gradient)

    def end_micro_batch(self) -> None:
        """Add a micro-batch's squared gradient norm to the sums, after its backward pass."""
        self.sums[0] += torch.stack([*self.norms.values()]).to(self.sums.dtype).square().sum()
        self.norms.clear()

    def end_step(self, micro_batch_sizes: list[int], examples: int, norm: Tensor) -> None:
        """Add a step's micro-batch sizes and squared gradient norm to the noise-scale sums.

        `micro_batch_sizes` has the number of examples in each micro-batch of this process, and
        `examples` is the number in the whole step.
        """
        # Exact, so that a step of a single micro-batch has a share of exactly 1.
        self.sums[2] += float(sum(Fraction(size, examples) ** 2 for size in micro_batch_sizes))
        if self.whole_steps:
            self.sums[1] += norm.to(self.sums.dtype).square()
            self.sums[3] += 1
            self.sums[4] += 1 / examples


def noise_metrics(state: dict[str, Any]) -> dict[str, float]:
    """Compute |G|², tr Σ and the gradient noise scale, in examples, from the sums in a state.

    The result is empty if the state has no noise sums, or each step was a single micro-batch. With
    much noise and few steps the estimate of |G|² may be 0 or below; then the noise scale is NaN.
    Means of |G|² and tr Σ over more steps are unbiased too, and their quotient is the noise scale
    of those steps.
    """
    if STATE_KEY not in state:
        return {}
    squares, whole, shares, steps, inverse = state[STATE_KEY].tolist()
    if steps - shares < 1e-6 * steps or not steps:
        return {}
    square = (whole - squares) / (steps - shares)
    variance = (whole - steps * square) / inverse
    return {
        "gradient_square": square,
        "gradient_variance": variance,
        "noise_scale": variance / square if square > 0 else math.nan,
    }
