"""The data class of one item in the doctor's report."""

from dataclasses import dataclass, field

PASS, FAIL, ABSENT = "pass", "fail", "not needed"
"""The statuses; ABSENT means missing or unusable while nothing on this machine needs it."""


@dataclass(frozen=True)
class CheckItem:
    """The result of checking one thing that a run may use, such as a library or the network."""

    name: str
    status: str
    """PASS, FAIL or ABSENT."""
    found: str
    """The finding in one line; this field's name is a key of the JSON that --json prints."""
    fix: str = ""
    """The fix in one sentence; where nothing fails, the way to get an optional thing."""
    required: bool = False
    """Whether no run is possible without it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The measured values, by names that include the unit."""
