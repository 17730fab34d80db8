"""Figure 1: the same recipe at several minibatches, and the elbow where their number leaves the
baseline's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.recipe.study import Study
from lsgd.report.claims import FAILS, HOLDS, outcome
from lsgd.report.groups import Group, trajectory
from lsgd.report.welch import difference

WITHIN = 0.5
"""The difference that counts as no worse, where a study does not say how many."""


@dataclass(frozen=True)
class Ladder:
    """At least three minibatches of one recipe, in order, and the one they are compared with."""

    groups: list[Group]
    baseline: Group
    within: float
    """The difference from the baseline that counts as no worse."""

    @property
    def equal(self) -> list[Group]:
        """Rungs above the baseline that are shown to be no worse."""
        return self._above(HOLDS)

    @property
    def worse(self) -> list[Group]:
        """Rungs above the baseline that are shown to be worse."""
        return self._above(FAILS)

    @property
    def elbow(self) -> Group:
        """The largest minibatch that is shown to be no worse; the baseline if there is none."""
        return [self.baseline, *self.equal][-1]

    def _above(self, wanted: str) -> list[Group]:
        base = self.baseline.claimed
        return [
            group
            for group in self.groups
            if group.recipe.batch_size > self.baseline.recipe.batch_size
            and group.claimed
            and base
            and outcome("no_worse_than", difference(group.claimed, base), self.within) == wanted
        ]


def find_ladders(groups: Sequence[Group], study: Study | None) -> list[Ladder]:
    """The ladder of every recipe that has runs at three minibatches or more."""
    families: dict[str, list[Group]] = {}
    for group in groups:
        if group.runs:
            families.setdefault(_but_for_size(group), []).append(group)
    ladders = []
    for family in families.values():
        family.sort(key=lambda group: group.recipe.batch_size)
        if len({group.recipe.batch_size for group in family}) >= 3:
            ladders.append(Ladder(family, _baseline(family, study), _within(study)))
    return ladders


def _but_for_size(group: Group) -> str:
    fields = trajectory(group.recipe)
    del fields["workers"]
    return json.dumps(fields, sort_keys=True)


def _baseline(family: list[Group], study: Study | None) -> Group:
    """The study's baseline, else the minibatch that the lr is scaled from, else the smallest."""
    for group in family:
        if study and group.recipe.name == study.baseline:
            return group
    for group in family:
        if group.recipe.batch_size == group.recipe.schedule.reference_batch:
            return group
    return family[0]


def _within(study: Study | None) -> float:
    claimed = [
        claim.within
        for claim in (study.claims if study else [])
        if claim.relation == "no_worse_than" and study and claim.other == study.baseline
    ]
    return min(claimed, default=WITHIN)
