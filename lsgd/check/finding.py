"""The result of checking one rule of the paper."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A rule of Goyal et al. 2017, and what a run does about it."""

    rule: str
    """The name of the rule, as in a recipe's `deviations`."""
    section: str
    """The section of the paper that has it."""
    paper: str
    """What the paper does, in words."""
    run: str
    """What this run does, in words."""
    same: bool
    """Whether the run follows the rule."""
