"""What holds whomever a recipe follows: rules by which a run is what it says."""

from dataclasses import replace

from lsgd.check.papers import goyal2017

NAMES = (
    "normalisation", "other_gammas", "lr_of_a_step", "gradient", "batchnorm", "tail", "shuffling",
    "seed", "evaluation", "averaging",
)  # fmt: skip
RULES = {name: replace(goyal2017.RULES[name], section="any") for name in NAMES}
"""In the words of Goyal et al. 2017."""
