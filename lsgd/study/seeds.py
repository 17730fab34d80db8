"""The choice of the seeds to train next while claims of a study are statistically undecided."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from lsgd.recipe.study import Study
from lsgd.report.claims import OPEN
from lsgd.report.findings import Findings


def seed_order(study: Study, max_seeds: int) -> list[int]:
    """Return the first `max_seeds` seeds to train: the study's own, then the smallest others.

    >>> seed_order(Study("s", "", "", "", "", seeds=[1, 5], entries=[]), 4)
    [1, 5, 0, 2]
    """
    others = (seed for seed in range(max_seeds + len(study.seeds)) if seed not in study.seeds)
    return [*study.seeds, *others][:max_seeds]


Name = TypeVar("Name")


def add_seeds(
    open_claims: Iterable[tuple[Name, Name]],
    ended: Mapping[Name, Collection[int]],
    order: Sequence[int],
) -> dict[Name, int]:
    """Return the seed to train next by recipe, for both recipes of each claim that is open.

    `ended` has the seeds of each recipe's runs. Of two recipes the one with fewer seeds catches up
    first, so that both have the same number; one that has all seeds of `order` gets none.

    >>> add_seeds([("a", "b"), ("c", "b")], {"a": [0, 1], "b": [0, 1], "c": [0]}, order=range(5))
    {'a': 2, 'b': 2, 'c': 1}
    """
    wanted: dict[Name, int] = {}
    for pair in open_claims:
        fewest = min(len(ended[name]) for name in pair)
        for name in pair:
            more = [seed for seed in order if seed not in ended[name]]
            if len(ended[name]) == fewest and more:
                wanted[name] = more[0]
    return wanted


def next_seeds(
    findings: Findings, order: Sequence[int], adding: Mapping[str, int]
) -> dict[str, int]:
    """Return the next seed to train by recipe name, for both recipes of each undecided claim.

    `adding` are the seeds that were added last. A claim is left out if its recipes have all seeds
    of `order`, or if a run is missing because it failed.
    """
    ended = {
        group.recipe.name: {run.recipe.seed for run in group.runs} for group in findings.groups
    }
    without = {group.recipe.name for group in findings.groups if group.lacking}
    without |= {name for name, seed in adding.items() if seed not in ended[name]}
    open_claims = [
        (decision.claim.recipe, decision.claim.other)
        for decision in findings.decisions
        if decision.outcome == OPEN and not without & {decision.claim.recipe, decision.claim.other}
    ]
    return add_seeds(open_claims, ended, order)
