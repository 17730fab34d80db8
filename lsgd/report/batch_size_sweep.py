"""The sweep of figure 1: one recipe at several minibatches, and the elbow of its metric."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.recipe.study import Study, confidence
from lsgd.report.claims import HOLDS, claim_outcome, difference_for_claims
from lsgd.report.groups import RecipeRuns, trajectory
from lsgd.report.looks import Looks
from lsgd.report.welch import Difference

WITHIN = 0.5
"""The difference from the baseline that counts as none, unless a study defines another."""


@dataclass(frozen=True)
class BatchSizeSweep:
    """One recipe's runs at three or more minibatch sizes, in order, with their baseline."""

    groups: list[RecipeRuns]
    baseline: RecipeRuns
    margin: float
    """The difference from the baseline that counts as none."""
    relation: str
    """The relation by which a recipe is as good as the baseline: as_good_as or no_worse_than."""
    looks: Looks
    """The numbers of seeds after which the differences are tested, for which intervals widen."""

    @property
    def as_good(self) -> list[RecipeRuns]:
        """The recipes above the baseline's minibatch that are shown to be as good."""
        return self._above(self.relation, HOLDS)

    @property
    def worse(self) -> list[RecipeRuns]:
        """The recipes above the baseline's minibatch that are shown to be worse."""
        return self._above("worse_than", HOLDS)

    @property
    def elbow(self) -> RecipeRuns:
        """The recipe with the largest minibatch that is shown to be as good, else the baseline."""
        return [self.baseline, *self.as_good][-1]

    @property
    def larger(self) -> list[RecipeRuns]:
        """The recipes above the baseline's minibatch."""
        base = self.baseline.recipe.batch_size
        return [group for group in self.groups if group.recipe.batch_size > base]

    @property
    def untested(self) -> list[RecipeRuns]:
        """The recipes above the baseline's minibatch that cannot be compared with it yet.

        They have too few seeds, or the baseline does.
        """
        if _has_too_few(self.baseline):
            return self.larger
        return [group for group in self.larger if _has_too_few(group)]

    @property
    def is_tested(self) -> bool:
        """Whether a recipe above the baseline's minibatch has been compared with it."""
        return not self.larger or self.untested != self.larger

    def level(self, relation: str) -> float:
        """Return the confidence level of the intervals that decide a relation to the baseline."""
        return self.looks.level(confidence(relation))

    def _above(self, relation: str, wanted: str) -> list[RecipeRuns]:
        """Return the recipes above the baseline's minibatch with this outcome of a relation."""
        gaps = self._differences(self.level(relation))
        return [
            group
            for group, gap in zip(self.groups, gaps, strict=True)
            if group.recipe.batch_size > self.baseline.recipe.batch_size
            and gap
            and claim_outcome(relation, gap, self.margin) == wanted
        ]

    def _differences(self, level: float) -> list[Difference | None]:
        """Return the difference of each recipe's mean metric from the baseline's.

        None if one of the two has too few seeds, as in claims.
        """
        return [
            None
            if _has_too_few(group) or _has_too_few(self.baseline)
            else difference_for_claims(group, self.baseline, level)
            for group in self.groups
        ]


def _has_too_few(group: RecipeRuns) -> bool:
    """Return whether a recipe has fewer seeds than its study, or one, which has no interval."""
    return bool(group.lacking or (group.claim_sample and group.claim_sample.n < 2))


def find_sweeps(
    groups: Sequence[RecipeRuns], study: Study | None, looks: Looks
) -> list[BatchSizeSweep]:
    """Return the minibatch sweep of every recipe that has runs at three minibatches or more."""
    families: dict[str, list[RecipeRuns]] = {}
    for group in groups:
        if group.runs:
            families.setdefault(_but_for_size(group), []).append(group)
    ladders = []
    for family in families.values():
        family.sort(key=lambda group: group.recipe.batch_size)
        if len({group.recipe.batch_size for group in family}) >= 3:
            base = _baseline(family, study)
            ladders.append(BatchSizeSweep(family, base, *_margin_and_relation(study), looks))
    return ladders


def _but_for_size(group: RecipeRuns) -> str:
    """Return a recipe's trajectory settings as text, without the seed and number of workers."""
    fields = trajectory(group.recipe)
    del fields["workers"]
    return json.dumps(fields, sort_keys=True)


def _baseline(family: list[RecipeRuns], study: Study | None) -> RecipeRuns:
    """Return a sweep's baseline: the study's, else that at the reference batch, else the first."""
    for group in family:
        if study and group.recipe.name == study.baseline:
            return group
    for group in family:
        if group.recipe.batch_size == group.recipe.schedule.reference_batch:
            return group
    return family[0]


def _margin_and_relation(study: Study | None) -> tuple[float, str]:
    """Return the smallest margin of a study's claims against its baseline, and their relation."""
    claims = [
        claim
        for claim in (study.claims if study else [])
        if claim.relation != "worse_than" and study and claim.other == study.baseline
    ]
    equal = any(claim.relation == "as_good_as" for claim in claims)
    relation = "as_good_as" if equal else "no_worse_than"
    return min((claim.within for claim in claims), default=WITHIN), relation
