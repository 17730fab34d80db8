"""The statistical power of a study: the differences that its number of seeds can detect."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsgd.recipe.study import Claim, Study
from lsgd.report.groups import RecipeRuns
from lsgd.report.looks import Looks
from lsgd.tables import format_count

if TYPE_CHECKING:
    import numpy as np

POWER = 0.8
"""The required share of studies that detect a difference of the reported size."""
MOST_SEEDS = 100
"""The largest number of seeds that is suggested."""
QUANTILES = 32
"""The quantiles of a variance over which the power is averaged; 200 change the fourth digit."""


@dataclass(frozen=True)
class Spread:
    """The standard deviation over seeds of the final metrics of a claim's two recipes."""

    std: float
    """The root of the mean of both variances."""
    source: str
    """A phrase that says where it is from; empty if it is not known, and 1."""
    share: float = 0.5
    """The share of one recipe in the sum of both variances."""


def detectable_difference(seeds: int, level: float = 0.95, share: float = 0.5) -> float:
    """Return the smallest difference of two means that a t-test detects in 80 % of studies.

    The unit is the standard deviation over seeds; each mean is of `seeds` runs; `level` is
    1 - alpha; `share` is that of one recipe in the sum of both variances.
    """
    from scipy import special

    return _solve(seeds, level, share, special.ndtr)


def equivalence_margin(seeds: int, level: float = 0.90, share: float = 0.5) -> float:
    """Return the smallest margin within which equal means are shown to lie with the power POWER.

    The unit is the standard deviation over seeds; each mean is of `seeds` runs; `level` is the
    confidence level (Schuirmann 1987); `share` is that of one recipe in the sum of both variances.
    """
    import numpy as np
    from scipy import special

    return _solve(seeds, level, share, lambda room: 2 * special.ndtr(np.maximum(room, 0)) - 1)


def _solve(
    seeds: int, level: float, share: float, decided: "Callable[[np.ndarray], np.ndarray]"
) -> float:
    """Solve for the effect that is decided with the power POWER, in standard deviations over seeds.

    `decided` is the probability of a decision by the effect less half of an interval, in standard
    errors of the difference. It is averaged over both recipes' estimated variances, on which the
    width and the degrees of freedom of Welch's interval depend (Gauss-Legendre over the quantiles).
    """
    import numpy as np
    from scipy import optimize, stats

    nodes, weights = np.polynomial.legendre.leggauss(QUANTILES)
    variances = stats.chi2.ppf((nodes + 1) / 2, seeds - 1) / (seeds - 1)
    ours, others = np.meshgrid(share * variances, (1 - share) * variances)
    total = ours + others
    degrees = (seeds - 1) * total**2 / (ours**2 + others**2)
    half = stats.t.ppf((1 + level) / 2, degrees) * np.sqrt(total)
    density = np.outer(weights, weights) / 4

    def missing(effect: float) -> float:
        return float(np.sum(density * decided(effect - half))) - POWER

    return math.sqrt(2 / seeds) * float(optimize.brentq(missing, 0, 100 * half.max()))


def claim_spread(claim: Claim, groups: Sequence[RecipeRuns], study: Study) -> Spread:
    """Return the standard deviation over seeds that a claim's recipes are expected to have.

    It is that of their runs, in which diverged runs count at the chance level; without two runs of
    a recipe it is the `spread` of the study, or the published value of its baseline.
    """
    pair = [group for group in groups if group.recipe.name in (claim.recipe, claim.other)]
    samples = [group.claim_sample for group in pair]
    several = [sample for sample in samples if sample and sample.n > 1]
    stds = [sample.std for sample in several]
    if any(stds):
        # Of perplexities the square of one can be beyond the range of floats.
        together = math.hypot(*stds)
        share = (stds[0] / together) ** 2 if len(stds) == 2 else 0.5
        std = together / math.sqrt(len(stds))
        return Spread(std, f"that of {sum(sample.n for sample in several)} runs", share)
    if study.spread is not None:
        return Spread(study.spread, "as the study expects")
    for group in groups:
        target = group.recipe.target
        if group.recipe.name == study.baseline and target and target.std:
            return Spread(target.std, "as published for the baseline")
    return Spread(1.0, "")


def power_lines(study: Study, groups: Sequence[RecipeRuns], looks: Looks) -> list[str]:
    """Return sentences on the differences that a study can detect at its first and last look.

    A look is a test of the claims after a seed was added. Claims whose recipes have runs with other
    spreads have sentences of their own. A study without claims has none.
    """
    if not study.claims:
        return []
    if looks.last < study.needed_seeds:
        return [
            f"power: no claim is tested with {format_count(looks.last, 'seed')}, as the study has "
            f"{study.needed_seeds}; write seeds={study.needed_seeds} or more"
        ]
    if looks.first < 2:
        return ["power: one seed resolves nothing; write seeds=3 or more"]
    metric = groups[0].metric
    by_spread: dict[Spread, list[Claim]] = {}
    for claim in study.claims:
        by_spread.setdefault(claim_spread(claim, groups, study), []).append(claim)
    lines = []
    for spread, claims in by_spread.items():
        of = f" ({'; '.join(claim.says for claim in claims)})" if len(by_spread) > 1 else ""

        def amount(value: float, source: str = spread.source) -> str:
            if source:
                return metric.format_difference(f"{value:.2f}")
            return f"{value:.2f} standard deviations over seeds"

        known = f" (standard deviation {amount(spread.std)}, {spread.source})" * bool(spread.source)
        for seeds in sorted({looks.first, looks.last}):
            found = resolved_difference(seeds, looks, spread)
            shown = resolved_difference(seeds, looks, spread, is_equivalence=True)
            lines.append(
                f"power: {seeds} seeds find a difference of {amount(found)}, and show two equal "
                f"recipes to be within {amount(shown)}, in {100 * POWER:.0f} % of studies"
                f"{known}{of}"
            )
        tests = sorted({(claim.within, claim.relation == "as_good_as") for claim in claims})
        for within, is_equivalence in tests:
            if spread.source and within > 0:
                needed = seeds_for_margin(within, looks, spread, is_equivalence=is_equivalence)
                lines.append(
                    f"power: a margin of {amount(within)} "
                    f"{'to either side ' * is_equivalence}takes "
                    f"{needed or f'more than {MOST_SEEDS}'} seeds, if the recipes are equal{of}"
                )
    return lines


def resolved_difference(
    seeds: int, looks: Looks, spread: Spread, *, is_equivalence: bool = False
) -> float:
    """Return the smallest difference that a test resolves at a look, or the smallest margin."""
    if is_equivalence:
        return spread.std * equivalence_margin(seeds, looks.level(0.90), share=spread.share)
    return spread.std * detectable_difference(seeds, looks.level(0.95), share=spread.share)


def seeds_for_margin(
    within: float, looks: Looks, spread: Spread, *, is_equivalence: bool
) -> int | None:
    """Return how many seeds resolve a claim with this margin; None if more than MOST_SEEDS."""

    def is_resolved(seeds: int) -> bool:
        found = resolved_difference(seeds, looks, spread, is_equivalence=is_equivalence)
        return found <= within

    seeds = 2 + bisect_left(range(2, MOST_SEEDS + 1), True, key=is_resolved)
    return seeds if seeds <= MOST_SEEDS else None
