"""The statistical power of a study: the differences that its number of seeds can detect."""

import math
from collections.abc import Sequence

from lsgd.recipe.study import Study
from lsgd.report.groups import RecipeRuns
from lsgd.report.looks import Looks

POWER = 0.8
"""The required share of studies that detect a difference of the reported size."""


def detectable_difference(seeds: int, level: float = 0.95, power: float = POWER) -> float:
    """Return the smallest difference of two means that a t-test detects with this power.

    The unit is the standard deviation over seeds; each mean is of `seeds` runs; `level` is
    1 - alpha. Uses the noncentral t distribution with equal variances (Cohen 1988, chapter 2).
    """
    from scipy import optimize, stats

    degrees, error = 2 * (seeds - 1), math.sqrt(2 / seeds)
    critical = stats.t.ppf((1 + level) / 2, degrees)

    def missing(difference: float) -> float:
        return float(stats.nct.sf(critical, degrees, difference / error)) - power

    return float(optimize.brentq(missing, 0, 100 * error * critical))


def equivalence_margin(seeds: int, level: float = 0.90, power: float = POWER) -> float:
    """Return the smallest margin for which an equivalence test of equal means has this power.

    The unit is the standard deviation over seeds; each mean is of `seeds` runs; `level` is the
    confidence level. The power is averaged over the distribution of the estimated standard
    deviation (Schuirmann 1987).
    """
    import numpy as np
    from scipy import optimize, special, stats

    degrees, error = 2 * (seeds - 1), math.sqrt(2 / seeds)
    shares = (np.arange(2000) + 0.5) / 2000
    spreads = np.sqrt(stats.chi2.ppf(shares, degrees) / degrees)
    half = float(stats.t.ppf((1 + level) / 2, degrees)) * spreads

    def missing(margin: float) -> float:
        room = np.maximum(margin / error - half, 0)
        return float(np.mean(2 * special.ndtr(room) - 1)) - power

    return float(optimize.brentq(missing, 0, 100 * error * float(half.max())))


def seed_std(groups: Sequence[RecipeRuns], study: Study) -> tuple[float, str] | None:
    """Return the final metric's standard deviation over seeds and its source, or None if unknown.

    It is pooled over the recipes from their finished runs; without such runs it is the `spread` of
    the study, or the published value of its baseline.
    """
    samples = [group.sample for group in groups]
    several = [sample for sample in samples if sample and sample.n > 1]
    if several:
        degrees = sum(sample.n - 1 for sample in several)
        pooled = math.sqrt(sum((s.n - 1) * s.std**2 for s in several) / degrees)
        return pooled, f"that of {sum(sample.n for sample in several)} finished runs"
    if study.spread is not None:
        return study.spread, "as the study expects"
    for group in groups:
        target = group.recipe.target
        if group.recipe.name == study.baseline and target and target.std:
            return target.std, "as published for the baseline"
    return None


def power_lines(study: Study, groups: Sequence[RecipeRuns], looks: Looks) -> list[str]:
    """Return sentences on the differences that a study can detect at its first and last look.

    A look is a test of the claims after a seed was added. A study without claims has no sentence.
    """
    if not study.claims:
        return []
    known = seed_std(groups, study)
    spread, source = known or (1.0, "")
    metric = groups[0].metric

    def amount(value: float) -> str:
        if known:
            return metric.format_difference(f"{value:.2f}")
        return f"{value:.2f} standard deviations over seeds"

    lines = []
    for seeds in sorted({looks.first, looks.last}):
        if seeds < 2:
            return ["power: one seed resolves nothing; write seeds=3 or more"]
        found = spread * detectable_difference(seeds, looks.level(0.95))
        shown = spread * equivalence_margin(seeds, looks.level(0.90))
        lines.append(
            f"power: {seeds} seeds find a difference of {amount(found)}, and show two equal "
            f"recipes to be within {amount(shown)}, in {100 * POWER:.0f} % of studies"
            + (f" (standard deviation {amount(spread)}, {source})" if known else "")
        )
    return lines
