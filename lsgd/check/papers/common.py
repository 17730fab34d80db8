"""Rules of correctness that hold for every paper."""

from dataclasses import replace

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017

NAMES = (
    "normalisation", "other_gammas", "lr_of_a_step", "gradient", "batchnorm", "tail", "shuffling",
    "seed", "evaluation", "averaging",
)  # fmt: skip
RULES = {name: replace(goyal2017.RULES[name], section="any") for name in NAMES}
"""The rules of Goyal et al. 2017 that hold for any source."""


def shared_with_goyal(section: str, *names: str) -> dict[str, Rule]:
    """Return the named rules of Goyal et al. 2017 as rules of a section of another source."""
    return {name: replace(goyal2017.RULES[name], section=section) for name in names}
