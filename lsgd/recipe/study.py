"""The definition of a study: recipes, seeds, and the claims that their numbers decide."""

import re
from dataclasses import dataclass, field

from lsgd.errors import Refused

RELATIONS = ("no_worse_than", "worse_than")


@dataclass(frozen=True)
class Entry:
    """One row of the table: a recipe, run once with every seed of the study."""

    recipe: str
    label: str
    """The name of the row in the table, such as "gradual warmup"."""
    like: str | None = None
    """The recipe of the paper that this one stands for, at a smaller scale."""
    search: str | None = None
    """The folder in runs/searches whose best point the recipe is trained with."""
    words: list[str] = field(default_factory=list)
    """The words of that point, once lsgd.run.tuned has looked; no file has them."""


@dataclass(frozen=True)
class Claim:
    """A sentence about two entries that their numbers decide."""

    says: str
    recipe: str
    relation: str
    """no_worse_than: at most `within` above `other`; worse_than: more than that."""
    other: str
    within: float = 0.0
    """The margin, in the unit of the metric: points of top-1 error."""


@dataclass(frozen=True)
class Study:
    """Several recipes and seeds that together make one table or figure."""

    name: str
    title: str
    question: str
    source: str
    """The table or figure of the paper, such as "Goyal et al. 2017, table 1"."""
    baseline: str
    """The recipe with which the others are compared."""
    seeds: list[int]
    entries: list[Entry]
    claims: list[Claim] = field(default_factory=list)


def check_study(study: Study, recipes: list[str]) -> None:
    """Raise Refused for a study that makes no sense, or has a recipe not among `recipes`."""
    trained = [entry.recipe for entry in study.entries]
    stood_for = [entry.like for entry in study.entries if entry.like]
    for name in (*trained, *stood_for):
        if name not in recipes:
            raise Refused(
                f"study {study.name} has the recipe {name}, which does not exist; write one that "
                "`python -m lsgd.train --help` lists"
            )
    compared = [name for claim in study.claims for name in (claim.recipe, claim.other)]
    for name in (study.baseline, *compared):
        if name not in trained:
            raise Refused(
                f"study {study.name} compares {name}, which is not among its entries; write one of "
                f"{', '.join(trained)}"
            )
    for entry in study.entries:
        if entry.words:
            raise Refused(
                f"study {study.name} has words for {entry.recipe}; write a recipe with them, or "
                "the search that has found them"
            )
    if len(set(trained)) < len(trained):
        raise Refused(f"study {study.name} has a recipe twice; write each entry once")
    if not study.seeds or len(set(study.seeds)) < len(study.seeds) or min(study.seeds) < 0:
        raise Refused(
            f"study {study.name} has seeds={study.seeds}; write different numbers, 0 or more"
        )
    for claim in study.claims:
        if claim.relation not in RELATIONS:
            raise Refused(
                f"study {study.name} has the relation {claim.relation!r}; write one of "
                f"{', '.join(RELATIONS)}"
            )
    if not re.fullmatch(r"\w+", study.name):
        raise Refused(f"study {study.name!r} does not make a folder's name; write letters and _")
