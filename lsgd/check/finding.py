"""What is found out about one rule of the paper."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A rule of Goyal et al. 2017, and what a run does about it."""

    rule: str
    """Its name, as in a recipe's `deviations`."""
    section: str
    """The section of the paper that has it."""
    paper: str
    """What the paper does."""
    found: str
    """What this run does."""
    same: bool
