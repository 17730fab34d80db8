"""The papers and codebases that a recipe may follow, by the value of its `paper` field.

Each file has a TITLE, WHO (the subject of sentences about it), a NOTE, and one function, `rules`,
which returns the rules for a run of a recipe, by the names of the observations. Settings that a
source does not state have no rule.
"""

from types import ModuleType

from lsgd.check.observation import Observation, RuleResult
from lsgd.check.papers import goyal2017, hoffer2017, lars2017, mlperf, nado2021, nus, scripts
from lsgd.recipe import Recipe

PAPERS: dict[str, ModuleType] = {
    "goyal2017": goyal2017,
    "hoffer2017": hoffer2017,
    "lars2017": lars2017,
    "mlperf": mlperf,
    "nado2021": nado2021,
    "nus": nus,
}


def apply_rules(recipe: Recipe, facts: list[Observation]) -> list[RuleResult]:
    """Apply the rules of the recipe's paper to observations of its run; return the results.

    The results are in the order of the observations. Rules without one are left out: a dataset that
    is not resized has no resize filter.
    """
    rules = PAPERS[recipe.paper].rules(recipe)
    return [rules[fact.rule].apply(fact) for fact in facts if fact.rule in rules]


def apply_script_rules(
    paper: str, recipe: Recipe, facts: list[Observation]
) -> list[RuleResult | None]:
    """Apply a paper's rules, and those of any script, to the observations of a training script.

    `recipe` has the script's minibatch, optimizer and reference. The results are in the order of
    the observations, None where neither has a rule.
    """
    rules = PAPERS[paper].rules(recipe) | scripts.RULES
    return [rules[fact.rule].apply(fact) if fact.rule in rules else None for fact in facts]
