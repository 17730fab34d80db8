"""What a run does, what a paper asks, and what comes of holding the one against the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """What a run does about something that papers have rules for."""

    rule: str
    """The name of these rules, as in a recipe's `deviations`."""
    run: str
    """What the run does, in words."""
    value: Any
    """The same for rules to look at."""


@dataclass(frozen=True)
class Rule:
    """What a paper asks for."""

    section: str
    """Where it does so."""
    paper: str
    """What it does itself, in words."""
    holds: Callable[[Any], bool]
    """Whether the value of a fact is that."""

    def asked_of(self, fact: Fact) -> "Finding":
        """The finding on a run that does so."""
        return Finding(fact.rule, self.section, self.paper, fact.run, bool(self.holds(fact.value)))


@dataclass(frozen=True)
class Finding:
    """A rule of the paper that a recipe follows, and what its run does about it."""

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
