"""The papers and codebases that a recipe may follow, by the value of its `paper` field.

Each file has a TITLE, WHO (the subject of sentences about it), a NOTE, and one function, `rules`,
which returns the rules for a run of a recipe, by the names of the observations. Settings that a
source does not state have no rule, but for those of which it would say that it uses them.
"""

from importlib import import_module
from types import ModuleType

from lsgd.check.observation import Observation, Rule, RuleResult
from lsgd.check.papers import goyal2017
from lsgd.recipe import Recipe, settings

PAPERS: dict[str, ModuleType] = {
    name: import_module(f"{__name__}.{name}") for name in settings.PAPERS
}
"""The modules of all papers, by the names that a recipe may have."""
SCRIPT_RULES = {
    "gradient": Rule("3", "normalised by kn, not n; without weight decay", bool),
    "batchnorm": Rule("2.3", "statistics over one worker's n images, never shared", bool),
    "shuffling": Rule(
        "3, 5.1", "one random permutation per epoch, divided among the workers", bool
    ),
    "evaluation": Rule("5.1", "top-1 error over all validation images", bool),
    "parameters": Rule("any", "equal in all processes, before and after each update", bool),
    "training_mode": Rule("any", "every update is of passes in training mode", bool),
    "evaluation_mode": Rule("any", "evaluated in evaluation mode, without gradients", bool),
    "clipping": Rule("any", "gradients are clipped after the loss scale is taken out", bool),
    "random_streams": Rule(
        "any", "each data worker of each process and epoch draws its own random numbers", bool
    ),
}
"""The rules that hold for every paper and that only a script outside of lsgd can break.

A recipe is not asked them, since it has no way to break them. Sections are of Goyal et al. 2017.
"""


def rules_of(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the recipe's paper, and those against extras of which it says nothing.

    Extras are changes of the loss, the network or the images that a source states if it has them.
    """
    own: dict[str, Rule] = PAPERS[recipe.paper].rules(recipe)
    extras = goyal2017.rules_of_extras(recipe)
    if "phases" in own:  # the rule for the minibatch of each epoch
        extras.pop("batch_growth", None)
    return extras | own


def apply_rules(recipe: Recipe, facts: list[Observation]) -> list[RuleResult]:
    """Apply the rules of the recipe's paper to observations of its run; return the results.

    The results are in the order of the observations. Rules without one are left out: a dataset that
    is not resized has no resize filter.
    """
    return _apply(rules_of(recipe), facts)


def apply_script_rules(paper: str, recipe: Recipe, facts: list[Observation]) -> list[RuleResult]:
    """Apply a paper's rules, and those of any script, to the observations of a training script.

    `recipe` has the script's minibatch, optimizer and reference. The results are in the order of
    the observations, without those for which neither has a rule.
    """
    return _apply(PAPERS[paper].rules(recipe) | SCRIPT_RULES, facts)


def _apply(rules: dict[str, Rule], facts: list[Observation]) -> list[RuleResult]:
    return [rules[fact.rule].apply(fact) for fact in facts if fact.rule in rules]
