"""Rules for settings that a source states as plain values, and the lr curves of such sources."""

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from lsgd.check.images import CropSamples
from lsgd.check.learning_rate import Curve, LrCurve, Warmup
from lsgd.check.observation import Rule
from lsgd.check.step import Lars, Momentum, WeightDecayGroups

LrRule = Callable[[NDArray[np.float64], float], Curve]
"""A function of the epochs at which the steps begin, and of the number of epochs of the run."""


def lr_curve(section: str, text: str, rule: LrRule, *, within: float = 1e-9) -> Rule:
    """Return the rule that the lr of every step is that of `rule`, with this relative tolerance."""

    def holds(found: LrCurve) -> bool:
        # A run that ends with its warmup divides by the 0 epochs after it, of which it has no step.
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = rule(found.epochs, found.end)
        return np.allclose(found.lrs, expected, rtol=within, atol=1e-12)

    return Rule(section, text, holds)


def by_drops(lr: float, warmup: float, *drops: int, start: float = 0.0) -> LrRule:
    """Return a linear warmup over epochs from `start`, then a tenth at each of these epochs."""

    def rule(epochs: NDArray[np.float64], _: float) -> Curve:
        dropped = np.sum([epochs >= drop for drop in drops], axis=0)
        return _warms_up(epochs, start, lr, warmup, lr * 0.1**dropped)

    return rule


def by_power(
    lr: float,
    warmup: float,
    *,
    start: float = 0.0,
    end: float = 0.0,
    until: float | None = None,
    power: float = 2.0,
) -> LrRule:
    """Return a linear warmup over epochs, then a polynomial to `end`, which holds from then on.

    The polynomial ends at epoch `until`, or with the run.
    """

    def rule(epochs: NDArray[np.float64], last: float) -> Curve:
        last = until or last
        left = np.clip((last - epochs) / (last - warmup), 0, 1)
        return _warms_up(epochs, start, lr, warmup, end + (lr - end) * left**power)

    return rule


def by_cosine(
    lr: float, warmup: float, *, start: float = 0.0, end: float = 0.0, until: float | None = None
) -> LrRule:
    """Return a linear warmup over epochs, then half a cosine to `end`.

    The cosine ends at epoch `until`, or with the run.
    """

    def rule(epochs: NDArray[np.float64], last: float) -> Curve:
        half = (1 + np.cos(math.pi * (epochs - warmup) / ((until or last) - warmup))) / 2
        return _warms_up(epochs, start, lr, warmup, end + (lr - end) * half)

    return rule


def _warms_up(
    epochs: NDArray[np.float64], start: float, lr: float, warmup: float, after: Curve
) -> Curve:
    """Return a curve of lr that is linear in the epochs of the warmup, and `after` behind it."""
    return np.where(epochs < warmup, start + (lr - start) * epochs / (warmup or 1), after)


def warmup(section: str, text: str, lr: float, epochs: float) -> Rule:
    """Return the rule that the lr rises linearly from 0 in the first epochs."""

    def holds(found: Warmup) -> bool:
        return found.own.rises(0.0, lr, epochs)

    return Rule(section, text, holds)


def no_row(batch_sizes: Iterable[int]) -> Rule:
    """Return the rule of a recipe whose minibatch has no row in its source; it never holds."""
    known = ", ".join(f"{each:,}" for each in batch_sizes)
    return Rule.unmet("table", f"there are rows for {known} images")


def sgd(section: str, *, equation: int, nesterov: bool, m: float) -> Rule:
    """Return the rule for momentum SGD of this equation, without clipping."""
    return Rule.equals(
        section,
        f"equation ({equation}), {'Nesterov' if nesterov else 'not Nesterov'}, m = {m:g}",
        Momentum(equation, nesterov, m, None),
    )


def lars(
    section: str,
    *,
    equation: int,
    m: float,
    trust: float,
    eps: float,
    ratio_decay: float | None = None,
) -> Rule:
    """Return the rule for LARS of the weights without Nesterov; BN and biases are not scaled."""
    return Rule.equals(
        section,
        f"as equation ({equation}), m = {m:g}, trust {trust:g}, eps {eps:g}; BN and biases are not "
        "scaled" + (f"; decay {ratio_decay:g} in the ratio" if ratio_decay else ""),
        Lars(equation, False, m, trust, eps, frozenset(["weights"]), ratio_decay),
    )


def lamb(section: str, *adapts: str, bias_correction: bool) -> Rule:
    """Return the rule for LAMB with its usual constants, which scales these kinds of tensors."""
    return Rule.equals(
        section,
        f"beta 0.9 and 0.999, eps 1e-6, {'with' if bias_correction else 'without'} bias correction,"
        f" of {' and '.join(adapts)}",
        (0.9, 0.999, 1e-6, bias_correction, frozenset(adapts)),
    )


def weight_decay(section: str, decay: float, *, biases: bool, decoupled: bool = False) -> Rule:
    """Return the rule for a weight decay of all weights, and of biases or none.

    It is in the gradient, or decoupled from it.
    """
    of_biases = frozenset([decay if biases else 0.0])
    groups = WeightDecayGroups(frozenset([decay]), of_biases, 0, decoupled)
    text = f"{decay:g} of weights and {'' if biases else 'not of '}the bias"
    text += ", in the update and not in the gradient" if decoupled else ""
    return Rule.equals(section, text, groups)


def decay_of_weights(section: str, decay: float) -> Rule:
    """Return the rule for the decay of weights in the gradient, of a source silent on biases."""
    return Rule(
        section,
        f"{decay:g} of weights",
        lambda found: found.weights == {decay} and not found.decoupled,
    )


def batchnorm_decay(section: str, decay: float) -> Rule:
    """Return the rule that gamma and beta of BN decay like all tensors, or not at all."""
    text = f"{decay:g}, as of all tensors" if decay else "none on gamma and beta of any BN"
    return Rule.equals(section, text, {decay})


def last_gamma(section: str, gamma: float) -> Rule:
    """Return the rule for the initial gamma of the last BN of each residual block."""
    return Rule.equals(section, f"{gamma:g} in the last BN of each block", {gamma})


def label_smoothing(section: str, share: float) -> Rule:
    """Return the rule for the share of a label that is spread over all classes."""
    text = f"{share:g}" if share else "none"
    return Rule.equals(section, text, share)


def smoothing_over_others(section: str) -> Rule:
    """Return the rule for labels of which 0.1 is spread over the 999 classes that are false."""
    return Rule(
        section,
        "0.1 over the other classes, which is 0.1001 over all",
        lambda share: abs(share - 0.1 * 1000 / 999) < 1e-5,
    )


def moving_average(section: str, *, half_life: float, every: int) -> Rule:
    """Return the rule for evaluations of an exponential average of the weights, in steps.

    Of a script only the kind of average is observed.
    """
    expected = ("ema", half_life, every)
    return Rule(
        section,
        f"exponential, with a half-life of {half_life:,} steps, taken every {every}",
        lambda found: found == expected[: len(found)],
    )


def precision(section: str, name: str) -> Rule:
    """Return the rule for the number format of products, with parameters in float32."""
    return Rule.equals(section, name, {name, "float32"})


def worker_batch(section: str, n: int) -> Rule:
    """Return the rule for the number of images per BN statistic."""
    return Rule.equals(section, f"BN over {n} images", {n})


def steps(section: str, count: int) -> Rule:
    """Return the rule for the number of steps of a run, which may end within an epoch."""
    return Rule(section, f"{count:,} steps", lambda found: found.steps == count)


def epochs(section: str, count: int) -> Rule:
    """Return the rule for the number of epochs of a run, each with all of its steps."""
    return Rule(section, f"{count}", lambda found: found.count == count and found.whole)


def epochs_to(section: str, error: float) -> Rule:
    """Return the rule for the final metric: the epochs to a top-1 error in percent."""
    return Rule(
        section,
        f"epochs to {100 - error:g} % top-1, which is an error of {error:g} %",
        lambda run: run.startswith(f"epochs to top-1 error {error:.2f} %"),
    )


def crops(
    section: str,
    area: tuple[float, float],
    aspect: tuple[float, float],
    epochs: int | None = None,
    more: tuple[str, ...] = (),
) -> Rule:
    """Return the rule for area and aspect of random crops, half of them flipped, for `epochs`.

    `more` has the further parts of the augmentation, as in CropSamples.
    """

    def holds(found: CropSamples | None) -> bool:
        return found is not None and found.has_ranges(area, aspect, epochs, more)

    return Rule(
        section,
        f"area {100 * area[0]:g} to {100 * area[1]:g} %, aspect {aspect[0]:.3g} to {aspect[1]:.3g},"
        " flip 0.5"
        + "".join(f", {part}" for part in more)
        + (f", for {epochs} epochs" if epochs else ""),
        holds,
    )


def resize(section: str, interpolation: str) -> Rule:
    """Return the rule for the interpolation by which images are resized."""
    return Rule.equals(section, interpolation, {interpolation})


def evaluation_crop(section: str, short_side: int) -> Rule:
    """Return the rule for the centre of 224 pixels of an image with this short side."""
    return Rule.equals(section, f"short side {short_side}, centre 224", 224 / short_side)


def colour_as_stored(section: str) -> Rule:
    """Return the rule that the colours of training images are not changed."""
    return Rule.equals(section, "as stored", "as stored")


BATCHNORM = {
    "batchnorm_eps": Rule.equals("code", "1e-05", {1e-5}),
    "running_average": Rule.equals("code", "momentum 0.9", 0.9),
}
"""The rules for BN of momentum 0.9 and eps 1e-5."""
STRIDE = {
    "stride": Rule.equals("code", "v1.5: stride 2 in the 3 x 3 convolution of a block", {(3, 3)})
}
"""The rule for the stride of ResNet-50 v1.5."""
RESNET50 = {"model": Rule("code", "ResNet-50", bool)}
"""The rule for ResNet-50."""
RESNET50_V15 = RESNET50 | STRIDE
"""The rules for ResNet-50 v1.5."""
FAN_IN = {"conv_init": Rule("code", "He: N(0, 2 / fan in)", lambda side: side == "in")}
"""The rule for an initialisation by fan in."""
FC_OF_PYTORCH = {
    "fc_init": Rule("code", "as PyTorch starts linear layers", lambda std: std != 0.01)
}
"""The rule for a last layer that has PyTorch's initialisation."""
