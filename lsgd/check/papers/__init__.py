"""Those whom a recipe may follow, a file each: `paper` in a recipe names one.

A file says who it is, in TITLE and WHO, and has one function, `rules`: what is asked of a run of
this recipe, by the names of the facts that are found out about it. What is not known of a source is
not asked.
"""

from types import ModuleType

from lsgd.check.finding import Fact, Finding
from lsgd.check.papers import goyal2017, hoffer2017, lars2017, mlperf, nado2021, nus
from lsgd.recipe import Recipe

PAPERS: dict[str, ModuleType] = {
    "goyal2017": goyal2017,
    "hoffer2017": hoffer2017,
    "lars2017": lars2017,
    "mlperf": mlperf,
    "nado2021": nado2021,
    "nus": nus,
}


def ask(recipe: Recipe, facts: list[Fact]) -> list[Finding]:
    """A finding for each rule of the recipe's paper on these facts, in their order.

    Rules that the run has no occasion to follow are left out: images that are not resized have no
    resize filter.
    """
    rules = PAPERS[recipe.paper].rules(recipe)
    return [rules[fact.rule].asked_of(fact) for fact in facts if fact.rule in rules]
