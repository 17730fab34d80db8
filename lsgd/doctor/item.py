"""One item of the doctor's report."""

from dataclasses import dataclass, field

PASS, FAIL, ABSENT = "pass", "fail", "not needed"
"""ABSENT is the status of what is missing or unusable while nothing on this machine needs it."""


@dataclass(frozen=True)
class Item:
    """The state of one thing that a run may use."""

    name: str
    status: str
    """PASS, FAIL or ABSENT."""
    found: str
    """The finding in one line; its name is a key of the JSON that --json prints."""
    fix: str = ""
    """What to type or do, in one sentence; where nothing fails, how to get it all the same."""
    required: bool = False
    """Whether no run at all is possible without it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Measured values, by names that carry the unit."""
