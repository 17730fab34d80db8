"""The sentences of a study, each held against the errors."""

from collections.abc import Mapping
from dataclasses import dataclass

from lsgd.recipe.study import Claim
from lsgd.report.groups import Group
from lsgd.report.welch import Difference, difference

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"


@dataclass(frozen=True)
class Decision:
    """What the errors say about a claim."""

    claim: Claim
    outcome: str
    difference: Difference | None
    """Its error less the other's; None if one of them has no run."""
    lacks: tuple[str, ...]
    """What would make it surer, such as missing seeds."""


def decide(claim: Claim, groups: Mapping[str, Group]) -> Decision:
    """The claim against the runs of its two recipes."""
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
    found = difference(ours, other)
    return Decision(claim, outcome(claim.relation, found, claim.within), found, tuple(lacks))


def outcome(relation: str, found: Difference, within: float) -> str:
    """Decided only where the whole 95 % interval lies on one side of `within`.

    >>> outcome("no_worse_than", Difference(0.1, -0.2, 0.4), within=0.5)
    'holds'
    >>> outcome("worse_than", Difference(0.1, -0.2, 0.4), within=0)
    'not resolved'
    """
    match relation:
        case "no_worse_than":
            holds, fails = found.high <= within, found.low > within
        case "worse_than":
            holds, fails = found.low > within, found.high < within
        case _:
            raise ValueError(f"unknown relation {relation!r}")
    return HOLDS if holds else FAILS if fails else OPEN
