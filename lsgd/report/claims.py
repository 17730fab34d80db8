"""The claims of a study, decided by the numbers of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from lsgd.recipe.study import Claim
from lsgd.report.groups import Group
from lsgd.report.welch import Difference, difference

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"


@dataclass(frozen=True)
class Decision:
    """What the numbers say about a claim."""

    claim: Claim
    outcome: str
    difference: Difference | None
    """Number of the claim's recipe less that of the other; None if one of them has no run."""
    lacks: tuple[str, ...]
    """What would make the decision surer, such as missing seeds."""


def decide(claim: Claim, groups: Mapping[str, Group]) -> Decision:
    """Decide a claim by the runs of its two recipes, which `groups` has by name."""
    pair = groups[claim.recipe], groups[claim.other]
    lacks = [
        f"“{group.label}” lacks seed{'s' * (len(group.missing) > 1)} "
        f"{', '.join(map(str, group.missing))}"
        for group in pair
        if group.missing
    ]
    ours, other = pair[0].claimed, pair[1].claimed
    if ours is None or other is None:
        return Decision(claim, OPEN, None, tuple(lacks))
    gap = difference(ours, other)
    return Decision(claim, outcome(claim.relation, gap, claim.within), gap, tuple(lacks))


def outcome(relation: str, gap: Difference, within: float) -> str:
    """The outcome of a claim, decided only if its 95 % interval lies on one side of `within`.

    `gap` is the difference of the numbers that the claim is about.

    >>> outcome("no_worse_than", Difference(0.1, -0.2, 0.4), within=0.5)
    'holds'
    >>> outcome("worse_than", Difference(0.1, -0.2, 0.4), within=0)
    'not resolved'
    """
    match relation:
        case "no_worse_than":
            holds, fails = gap.high <= within, gap.low > within
        case "worse_than":
            holds, fails = gap.low > within, gap.high < within
        case _:
            raise ValueError(f"unknown relation {relation!r}")
    return HOLDS if holds else FAILS if fails else OPEN
