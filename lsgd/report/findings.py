"""All that a report says, before it is put into words: computed once, written in three forms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsgd.errors import Refused
from lsgd.recipe.study import Study
from lsgd.report.claims import Decision, decide
from lsgd.report.groups import Group, group_runs, group_study
from lsgd.report.ladder import Ladder, find_ladders
from lsgd.report.search import LeftOut
from lsgd.report.speed import Speed, measure
from lsgd.report.verdict import Verdict, judge
from lsgd.rules.metric import TOP1, Metric
from lsgd.run.read import Run


@dataclass(frozen=True)
class Findings:
    """The findings on some runs, for a study or without one."""

    study: Study | None
    metric: Metric
    """The metric of all runs."""
    groups: list[Group]
    verdicts: list[Verdict]
    """The verdict on each group, in their order."""
    baseline: Group | None
    """The group that the others are compared with; None if no group is made for that."""
    decisions: list[Decision]
    """The decision on each claim of the study."""
    ladders: list[Ladder]
    speeds: list[Speed]
    left_out: list[LeftOut]

    @property
    def runs(self) -> list[Run]:
        """The runs that count, and the repeats of their seeds."""
        return [run for group in self.groups for run in (*group.runs, *group.repeats)]

    @property
    def sets(self) -> list[str]:
        """The other evaluation sets of its runs, whose numbers stand beside; mostly none."""
        return list(dict.fromkeys(name for run in self.runs for name in run.sets[1:]))

    @property
    def things(self) -> str:
        """What the speeds of its runs count, such as images."""
        return " or ".join(dict.fromkeys(run.things for run in self.runs if run.things))

    @property
    def examples(self) -> str:
        """What a minibatch is made of, in words."""
        return "images" if self.things in ("images", "") else "examples"

    @property
    def counted(self) -> int:
        """The number of runs that count."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def planned(self) -> int | None:
        """The number of runs that the study asks for; None without a study."""
        if self.study is None:
            return None
        return len(self.study.entries) * len(self.study.seeds)

    @property
    def partial(self) -> bool:
        """Whether runs of the study are missing."""
        return any(group.missing for group in self.groups)


def find(
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    study: Study | None,
    words: Sequence[str] = (),
) -> Findings:
    """The findings on these runs; `words` change the recipes of the study.

    Raises Refused if the runs that count are of different metrics.
    """
    groups, more = group_study(study, runs, words) if study else group_runs(runs)
    metric = _metric(groups)
    groups = [replace(group, metric=metric) for group in groups]
    by_name = {group.recipe.name: group for group in groups}
    return Findings(
        study=study,
        metric=metric,
        groups=groups,
        verdicts=[judge(group) for group in groups],
        baseline=by_name[study.baseline] if study else _reference(groups),
        decisions=[decide(claim, by_name) for claim in study.claims] if study else [],
        ladders=find_ladders(groups, study),
        speeds=measure(groups),
        left_out=[*left_out, *more],
    )


def _metric(groups: Sequence[Group]) -> Metric:
    runs = [run for group in groups for run in (*group.runs, *group.repeats)]
    for run in runs:
        if run.metric != runs[0].metric:
            raise Refused(
                f"{runs[0].path} is a run of {runs[0].metric.words} and {run.path} one of "
                f"{run.metric.words}, which cannot be compared; give runs of one of them"
            )
    return runs[0].metric if runs else TOP1


def _reference(groups: Sequence[Group]) -> Group | None:
    """The one recipe whose minibatch is that which the lr is scaled from, if there is just one."""
    references = [
        group
        for group in groups
        if group.recipe.batch_size == group.recipe.schedule.reference_batch
    ]
    return references[0] if len(references) == 1 and len(groups) > 1 else None
