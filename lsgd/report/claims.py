"""The decision of a study's claims by the metrics of its runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lsgd.recipe.study import Claim
from lsgd.report.groups import RecipeRuns
from lsgd.report.looks import Looks
from lsgd.report.welch import Difference, welch_difference

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"


@dataclass(frozen=True)
class Decision:
    """The decision on a claim of a study: its outcome, and the numbers that decide it."""

    claim: Claim
    outcome: str
    difference: Difference | None
    """The claim's recipe minus the other recipe, with the interval that decides.

    None as long as one of the two lacks seeds: a look at a part of them would be a further test.
    """
    level: float
    """The confidence level of that interval."""
    lacks: tuple[str, ...]
    """The recipes with too few seeds, for which the claim is not tested yet, as text."""


def decide(claim: Claim, groups: Mapping[str, RecipeRuns], looks: Looks) -> Decision:
    """Decide whether a study's claim holds, from the final metrics of its two recipes' runs.

    `groups` has the runs by recipe name, `looks` the numbers of seeds at which claims are tested.
    """
    level = looks.level(claim.confidence)
    pair = groups[claim.recipe], groups[claim.other]
    lacks = [
        f"“{group.label}” has {len(group.runs)} of {group.needed} seeds"
        for group in pair
        if group.lacking
    ]
    gap = None if lacks else difference_for_claims(*pair, level)
    found = claim_outcome(claim.relation, gap, claim.within) if gap else OPEN
    return Decision(claim, found, gap, level, tuple(lacks))


def difference_for_claims(
    ours: RecipeRuns, other: RecipeRuns, level: float = 0.95
) -> Difference | None:
    """Return the difference of two recipes' mean metrics for claims; None if one has no run.

    A run that never reached its target took at least as long as it lasted. So the difference has no
    upper end if `ours` has such runs, and no lower end if `other` has.
    """
    if ours.claim_sample is None or other.claim_sample is None:
        return None
    gap = welch_difference(ours.claim_sample, other.claim_sample, level)
    if ours.censored:
        gap = replace(gap, high=math.inf)
    return replace(gap, low=-math.inf) if other.censored else gap


def claim_outcome(relation: str, gap: Difference, within: float) -> str:
    """Return whether a claim holds, fails or is not resolved by a difference's interval.

    A claim is decided only if the interval lies on one side of `within`. "As good" holds if the
    interval is within the margin on both sides, and fails if it is outside.

    >>> claim_outcome("as_good_as", Difference(0.1, -0.2, 0.4), within=0.5)
    'holds'
    >>> claim_outcome("no_worse_than", Difference(0.1, -0.2, 0.4), within=0.5)
    'holds'
    >>> claim_outcome("worse_than", Difference(0.1, -0.2, 0.4), within=0)
    'not resolved'
    """
    match relation:
        case "as_good_as":
            holds = -within <= gap.low and gap.high <= within
            fails = gap.low > within or gap.high < -within
        case "no_worse_than":
            holds, fails = gap.high <= within, gap.low > within
        case "worse_than":
            holds, fails = gap.low > within, gap.high < within
        case _:
            raise ValueError(f"unknown relation {relation!r}")
    return HOLDS if holds else FAILS if fails else OPEN
