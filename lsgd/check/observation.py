"""Observations of a run, rules of a paper, and the results of applying rules to observations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """An observed property of a run, for which papers have rules."""

    rule: str
    """The name of the rules for it, as in a recipe's `deviations`."""
    run: str
    """The description of the run's behaviour."""
    value: Any
    """The value that rules evaluate."""
    place: str = ""
    """The line of a training script that causes it, as file:line; empty if there is none."""


@dataclass(frozen=True)
class Rule:
    """A requirement of a paper on one property of a run."""

    section: str
    """The section of the paper with the requirement."""
    paper: str
    """The description of what the paper does."""
    holds: Callable[[Any], bool]
    """A predicate on the value of an observation: whether the run meets the requirement."""

    @classmethod
    def equals(cls, section: str, paper: str, value: object) -> "Rule":
        """Return the rule that an observation has this value."""
        return cls(section, paper, lambda found: found == value)

    @classmethod
    def unmet(cls, section: str, paper: str) -> "Rule":
        """Return a rule that no run meets: lsgd lacks the setting, or the source the run."""
        return cls(section, paper, lambda _: False)

    def apply(self, fact: Observation) -> "RuleResult":
        """Apply this rule of a paper to an observation of a run and return the result."""
        followed = bool(self.holds(fact.value))
        return RuleResult(fact.rule, self.section, self.paper, fact.run, followed, fact.place)


@dataclass(frozen=True)
class RuleResult:
    """The result of comparing a run with one rule of its paper."""

    rule: str
    """The name of the rule, as in a recipe's `deviations`."""
    section: str
    """The section of the paper that has the rule."""
    paper: str
    """The description of what the paper does."""
    run: str
    """The description of what this run does."""
    is_followed: bool
    """Whether the run follows the rule."""
    place: str = ""
    """The place of the observation."""
