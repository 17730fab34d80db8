"""What holds whomever a recipe follows: rules by which a run is what it says."""

from dataclasses import replace

from lsgd.check.finding import Rule
from lsgd.check.papers import goyal2017

NAMES = (
    "normalisation", "other_gammas", "lr_of_a_step", "gradient", "batchnorm", "tail", "shuffling",
    "seed", "evaluation", "averaging",
)  # fmt: skip
RULES = {name: replace(goyal2017.RULES[name], section="any") for name in NAMES}
"""In the words of Goyal et al. 2017."""


def as_goyal(section: str, *names: str) -> dict[str, Rule]:
    """The rules that a paper has in common with Goyal et al. 2017, and where it has them."""
    return {name: replace(goyal2017.RULES[name], section=section) for name in names}
