"""How often a claim is decided wrongly, and how often rightly, if seeds are added until it is.

    python results/2026-11-25-looks/simulate.py > table.md

Each study draws the errors of two recipes from normal distributions and decides one claim after 3,
4, …, 10 seeds of each, until it is decided. At the margin itself a verdict is most easily wrong.
10,000 studies at a time are arrays here; the first 200 of each row are decided by lsgd's own
functions as well, and have to come out alike.
"""

import sys

import numpy as np
from scipy import stats

from lsgd.recipe.study import Claim
from lsgd.report.claims import FAILS, HOLDS, OPEN, claim_outcome
from lsgd.report.looks import Looks
from lsgd.report.welch import sample_stats, welch_difference
from lsgd.tables import markdown_table

STUDIES, CHECKED = 10_000, 200
WITHIN = 0.5


def decided(relation, ours, other, level):
    """Return where the claim holds and where it does not, of studies in rows."""
    n = ours.shape[1]
    of_a, of_b = ours.var(1, ddof=1) / n, other.var(1, ddof=1) / n
    variance = of_a + of_b
    share = of_a / variance
    degrees = (n - 1) / (share**2 + (1 - share) ** 2)
    half = stats.t.ppf((1 + level) / 2, degrees) * np.sqrt(variance)
    mean = ours.mean(1) - other.mean(1)
    low, high = mean - half, mean + half
    if relation == "as_good_as":
        return (low >= -WITHIN) & (high <= WITHIN), (low > WITHIN) | (high < -WITHIN)
    return high <= WITHIN, low > WITHIN


def study(relation, gap, spreads, looks, level):
    """Return the shares of studies with each outcome, in percent, and the seeds on average."""
    draw = np.random.default_rng([looks.first, looks.last, *(int(1000 * s) for s in spreads)])
    ours = gap + spreads[0] * draw.standard_normal((STUDIES, looks.last))
    other = spreads[1] * draw.standard_normal((STUDIES, looks.last))
    said, seeds = np.full(STUDIES, OPEN, dtype=object), np.full(STUDIES, looks.last)
    for n in range(looks.first, looks.last + 1):
        holds, fails = decided(relation, ours[:, :n], other[:, :n], level)
        for where, word in ((holds, HOLDS), (fails, FAILS)):
            new = where & (said == OPEN)
            said[new], seeds[new] = word, n
    for i in range(CHECKED):
        for n in range(looks.first, looks.last + 1):
            gaps = welch_difference(
                sample_stats(list(ours[i, :n])), sample_stats(list(other[i, :n])), level
            )
            found = claim_outcome(relation, gaps, WITHIN)
            if found != OPEN:
                break
        assert found == said[i], (relation, gap, spreads, i)
    return {word: 100 * float(np.mean(said == word)) for word in (HOLDS, FAILS, OPEN)}, seeds.mean()


def main():
    """Print the table."""
    head = ["claim", "true difference", "standard deviations", "seeds", "interval"]
    head += ["holds, %", "does not hold, %", "not resolved, %", "seeds on average"]
    cases = [
        (relation, gap, spreads, looks, None)
        for looks in (Looks(3, 10), Looks(5, 10))
        for relation in ("no_worse_than", "as_good_as")
        for spreads in ((0.2, 0.2), (0.2, 0.6), (0.05, 0.5))
        for gap in (WITHIN, 0.0)
    ]
    # What the same looks come to with the level of a single one.
    for relation, level in (("no_worse_than", 0.95), ("as_good_as", 0.90)):
        cases.append((relation, WITHIN, (0.2, 0.2), Looks(3, 10), level))
    rows = []
    for relation, gap, spreads, looks, level in cases:
        used = level or looks.level(Claim("", "a", relation, "b", WITHIN).confidence)
        share, seeds = study(relation, gap, spreads, looks, used)
        rows.append(
            [
                *(relation, f"{gap:g}", "{:g}, {:g}".format(*spreads)),
                *(f"{looks.first} to {looks.last}", f"{100 * used:.2f} %"),
                *(f"{value:.2f}" for value in share.values()),
                f"{seeds:.1f}",
            ]
        )
        print(rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(head, rows))


main()
