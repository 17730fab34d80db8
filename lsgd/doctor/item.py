"""What the doctor says of one thing."""

from dataclasses import dataclass, field

PASS, FAIL, ABSENT = "pass", "fail", "not needed"
"""The third: it is not there, or not usable, and nothing here calls for it."""


@dataclass(frozen=True)
class Item:
    """One thing that a run may use, as it was found."""

    name: str
    status: str
    """pass, fail or not needed."""
    found: str
    fix: str = ""
    """What to type or do, in one sentence; where nothing fails, how to have it none the less."""
    required: bool = False
    """Whether no run at all is possible without it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured, by names that carry the unit."""
