"""The choice of the seeds to train next while claims of a study are statistically undecided."""

from collections.abc import Sequence

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


def next_seeds(findings: Findings, order: Sequence[int]) -> dict[str, int]:
    """Return the next seed to train by recipe name, for both recipes of each undecided claim.

    A claim is left out if its recipes have all seeds of `order`, or if a run of an earlier seed is
    missing because it failed.
    """
    groups = {group.recipe.name: group for group in findings.groups}
    wanted: dict[str, int] = {}
    for decision in findings.decisions:
        pair = [groups[decision.claim.recipe], groups[decision.claim.other]]
        if decision.outcome != OPEN or any(group.missing for group in pair):
            continue
        ended = [{run.recipe.seed for run in group.runs} for group in pair]
        # The recipe with fewer seeds catches up first, so that both have the same number.
        fewest = min(map(len, ended))
        for group, seeds in zip(pair, ended, strict=True):
            more = [seed for seed in order if seed not in seeds]
            if len(seeds) == fewest and more:
                wanted[group.recipe.name] = more[0]
    return wanted
