"""The definition of a study: recipes, seeds, and claims that their final metrics decide."""

import re
from dataclasses import dataclass, field, replace

from lsgd.errors import UsageError
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.recipe.fields import check_limits, one_of, setting

RELATIONS = ("as_good_as", "no_worse_than", "worse_than")
REPEATS = ("first", "mean")
QUICK = "-quick"
"""The end of the name of a study's quick part, which no study's own name can have."""


@dataclass(frozen=True)
class Entry:
    """A row of a study's table: a recipe, run once with every seed of the study."""

    recipe: str
    label: str
    """The label of the row in the table, such as "gradual warmup"."""
    like: str | None = None
    """The recipe of the paper that this one represents at a smaller scale."""
    start: str | None = None
    """The recipe from whose run with the same seed this one starts, with a new last layer."""
    search: str | None = None
    """The folder in runs/searches whose best trial gives the overrides for this recipe."""
    file: str | None = None
    """The path of the recipe `recipe` if it is a user's own; lsgd sets it, no study file does."""
    words: list[str] = field(default_factory=list)
    """The overrides of that trial, which lsgd.run.tuned fills in; study files do not have them."""

    @property
    def recipe_override(self) -> str:
        """The override that chooses the recipe of this entry, such as recipe=digits."""
        return format_override("recipe", self.file or self.recipe)


def without_start(recipe: Recipe) -> Recipe:
    """Return a recipe without its start weights, which differ between the seeds of an entry."""
    return replace(recipe, model=replace(recipe.model, start=None, start_sha256="", new_head=False))


@dataclass(frozen=True)
class Claim:
    """A statement about two recipes of a study, which is tested with their final metrics."""

    says: str
    recipe: str
    relation: str = field(metadata=one_of(*RELATIONS))
    """The tested relation: as_good_as, no_worse_than or worse_than.
    as_good_as: at most `within` away from `other`; no_worse_than: at most `within` above it;
    worse_than: more than `within` above it."""
    other: str
    within: float = 0.0
    """The margin, in the unit of the metric: points of top-1 error."""

    @property
    def confidence(self) -> float:
        """The confidence level of the interval by which a study's claim is decided."""
        return confidence(self.relation)


def confidence(relation: str) -> float:
    """Return the confidence level of the interval by which a claim of a relation is decided.

    It is 0.90 for as_good_as, two one-sided tests with an error of 5 % each (Schuirmann 1987), and
    0.95 for the others, with 2.5 % on each side.
    """
    return 0.90 if relation == "as_good_as" else 0.95


@dataclass(frozen=True)
class Study:
    """The definition of a study: recipes and seeds whose runs make one table or figure."""

    name: str
    title: str
    question: str
    source: str
    """The table or figure of the paper, such as "Goyal et al. 2017, table 1"."""
    baseline: str
    """The recipe that the others are compared with."""
    seeds: list[int]
    entries: list[Entry]
    claims: list[Claim] = field(default_factory=list)
    spread: float | None = None
    """The expected standard deviation over seeds, by which --print computes statistical power."""
    repeats: str = setting("first", one_of(*REPEATS))
    """The rule by which several runs of one seed count, such as runs on other numbers of threads.
    first: the first that has ended, by the order and the names of the folders; mean: by their mean,
    since they are no independent samples."""
    quick: list[str] = field(default_factory=list)
    """The recipes that `--quick` trains; none if the study has no such part."""
    quick_seeds: list[int] = field(default_factory=lambda: [0])
    """The seeds that `--quick` trains them with."""
    file: str | None = None
    """The path of the file if the study is a user's own; lsgd sets it, no study file does."""
    claim_seeds: int = 0
    """The number of seeds that claims need, set by lsgd alone; 0 means the number of `seeds`."""

    @property
    def needed_seeds(self) -> int:
        """The number of seeds, whichever, that a recipe needs before its claims are tested."""
        return self.claim_seeds or len(self.seeds)

    def quick_part(self) -> "Study":
        """Return the study of the part that `--quick` trains, with the claims on its recipes.

        Raises UsageError if the study has no such part.
        """
        if not self.quick:
            raise UsageError(f"study {self.name} has no quick part; leave out --quick")
        names = self.quick
        return replace(
            self,
            name=f"{self.name}{QUICK}",
            title=f"{self.title} (quick)",
            seeds=self.quick_seeds,
            entries=[entry for entry in self.entries if entry.recipe in names],
            claims=[each for each in self.claims if {each.recipe, each.other} <= {*names}],
            quick=[],
        )

    @property
    def command_arguments(self) -> list[str]:
        """The arguments of `lsgd study` that name this study, or the quick part of one."""
        name = self.name.removesuffix(QUICK)
        chosen = format_override("+study", self.file or name)
        return [chosen, *(["--quick"] if name != self.name else [])]


def check_study(study: Study, recipes: list[str]) -> None:
    """Raise UsageError if a study's definition is invalid, or has a recipe not in `recipes`."""
    trained = [entry.recipe for entry in study.entries]
    stood_for = [entry.like for entry in study.entries if entry.like]
    for name in (*trained, *stood_for):
        if name not in recipes:
            raise UsageError(
                f"study {study.name} has the recipe {name}, which does not exist; write one that "
                "`python -m lsgd.train --recipes` lists"
            )
    compared = [name for claim in study.claims for name in (claim.recipe, claim.other)]
    for name in (study.baseline, *compared):
        if name not in trained:
            raise UsageError(
                f"study {study.name} compares {name}, which is not among its entries; write one of "
                f"{', '.join(trained)}"
            )
    for entry in study.entries:
        if entry.start and (entry.start not in recipes or entry.start in trained):
            why = "the study trains itself" if entry.start in trained else "does not exist"
            raise UsageError(
                f"study {study.name} starts {entry.recipe} from {entry.start}, which {why}; write "
                "a recipe of another study, which `python -m lsgd.train --recipes` lists"
            )
        if entry.words:
            raise UsageError(
                f"study {study.name} has overrides for {entry.recipe}; write a recipe with them, "
                "or the search that found them"
            )
    if len(set(trained)) < len(trained):
        raise UsageError(f"study {study.name} has a recipe twice; write each entry once")
    for seeds in (study.seeds, study.quick_seeds):
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise UsageError(
                f"study {study.name} has seeds={seeds}; write different numbers, 0 or more"
            )
    if study.quick and not {study.baseline} <= {*study.quick} <= {*trained}:
        raise UsageError(
            f"study {study.name} has quick={study.quick}; write its baseline "
            f"{study.baseline} and others of its entries"
        )
    check_limits(study)
    for claim in study.claims:
        if claim.relation == "as_good_as" and claim.within <= 0:
            raise UsageError(
                f"study {study.name} claims that {claim.recipe} is as good as {claim.other} within "
                f"{claim.within:g}, which no number of runs can show; write a margin, such as 0.5"
            )
    if not re.fullmatch(r"\w+", study.name):
        raise UsageError(f"study {study.name!r} does not make a folder's name; write letters and _")
