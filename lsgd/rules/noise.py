"""The gradient noise scale, told from the gradients of single passes (McCandlish et al. 2018).

Let the gradient of an example have the mean G and the covariance Σ. The mean gradient of b examples
then has a squared norm of |G|² + tr Σ / b, in expectation (appendix A.1). So for a step of B
examples in passes of b_1, b_2, …, of which each gives g_p, the gradient of its examples over B:

    E of the sum of all |g_p|²      S = |G|² f + tr Σ / B      f = sum of all (b_p / B)²
    E of |the sum of all g_p|²      T = |G|²   + tr Σ / B

|G|² and tr Σ follow without bias, whatever the sizes of the passes; their quotient B_simple is the
minibatch at which noise and gradient are alike (equation 2.9). Sums over steps give means of both.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

KEY, SUMS = "noise", 5
"""The key of the sums in a state, and how many they are: of S, T, f, steps and 1 / B."""


class NoiseScale:
    """Adds up, for every step, what its noise scale is made of. Nothing waits for the device.

    Each process adds the squares and shares of its own passes; process 0, which has examples in
    every step, adds what is of the whole step.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], sums: Tensor, *, whole_steps: bool
    ) -> None:
        self.sums, self.whole_steps = sums, whole_steps
        self.norms: list[Tensor] = []
        for parameter in parameters:
            # It sees the gradient of a pass before that is added to the others, and makes no copy.
            parameter.register_hook(self._seen)

    def _seen(self, gradient: Tensor) -> None:
        self.norms.append(torch.linalg.vector_norm(gradient))

    def end_pass(self) -> None:
        """All gradients of a pass are there."""
        self.sums[0] += torch.stack(self.norms).double().square().sum()
        self.norms.clear()

    def end_step(self, passes: list[int], examples: int, norm: Tensor) -> None:
        """A step of so many examples has the gradient of this norm; `passes` has the number of
        examples in each pass of this process."""
        # Exact, so that a step of one pass is told from one of many.
        self.sums[2] += float(sum(Fraction(size, examples) ** 2 for size in passes))
        if self.whole_steps:
            self.sums[1] += norm.double().square()
            self.sums[3] += 1
            self.sums[4] += 1 / examples


def rates(state: dict[str, Any]) -> dict[str, float]:
    """|G|², tr Σ and the noise scale, in examples, of the steps that a state has counted; none if
    the state has no sums, or each step was a single pass.

    |G|² comes out as 0 or below where there is much noise and few steps; then the noise scale is
    NaN. Means of |G|² and tr Σ over more steps are without bias too, and their quotient is the
    noise scale of these.
    """
    if KEY not in state:
        return {}
    squares, whole, shares, steps, inverse = state[KEY].tolist()
    if steps - shares < 1e-6 * steps or not steps:
        return {}
    square = (whole - squares) / (steps - shares)
    variance = (whole - steps * square) / inverse
    return {
        "gradient_square": square,
        "gradient_variance": variance,
        "noise_scale": variance / square if square > 0 else math.nan,
    }
