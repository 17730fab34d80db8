"""The findings of a report, computed once and written as Markdown, HTML and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsgd.errors import UsageError
from lsgd.recipe.study import Study
from lsgd.report.batch_size_sweep import BatchSizeSweep, find_sweeps
from lsgd.report.claims import Decision, decide
from lsgd.report.groups import RecipeRuns, group_runs, group_study
from lsgd.report.looks import Looks
from lsgd.report.run_archive import displayed_path
from lsgd.report.run_folders import SkippedFolder
from lsgd.report.speed import Speed, measure_speeds
from lsgd.report.verdict import Verdict, judge_against_published
from lsgd.rules.metric import TOP1, Metric
from lsgd.run.read import Run


@dataclass(frozen=True)
class Findings:
    """The findings of a report on a set of runs, those of a study or any others."""

    study: Study | None
    metric: Metric
    """The metric of all runs."""
    groups: list[RecipeRuns]
    verdicts: list[Verdict]
    """The verdict on each group, in the order of `groups`."""
    baseline: RecipeRuns | None
    """The group that the others are compared with; None if no group is the baseline."""
    looks: Looks
    """The numbers of seeds at which the claims have been or will be tested."""
    decisions: list[Decision]
    """The decision on each claim of the study."""
    sweeps: list[BatchSizeSweep]
    speeds: list[Speed]
    skipped_folders: list[SkippedFolder]

    @property
    def runs(self) -> list[Run]:
        """The runs of the report that count, and the repeats of their seeds."""
        return [run for group in self.groups for run in (*group.runs, *group.repeats)]

    @property
    def other_evaluation_sets(self) -> list[str]:
        """The names of the runs' evaluation sets besides the first one; usually none."""
        return list(dict.fromkeys(name for run in self.runs for name in run.sets[1:]))

    @property
    def example_unit(self) -> str:
        """The unit of the examples in the speeds of these runs, such as images."""
        return " or ".join(dict.fromkeys(run.things for run in self.runs if run.things))

    @property
    def batch_unit(self) -> str:
        """The unit of the examples in a minibatch: images or examples."""
        return "images" if self.example_unit in ("images", "") else "examples"

    @property
    def counted(self) -> int:
        """The number of runs in the report that count."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def planned(self) -> int | None:
        """The number of runs that the study plans or has beyond its plan; None without a study."""
        if self.study is None:
            return None
        return sum(len(group.seeds or []) for group in self.groups)

    @property
    def is_partial(self) -> bool:
        """Whether runs that the study plans are missing."""
        return any(group.missing for group in self.groups)

    @property
    def tested_seeds(self) -> list[int]:
        """The numbers of seeds with which claims and elbows are tested, in ascending order."""
        return _tested_seeds(self.study, self.groups, self.sweeps)


def compute_findings(
    runs: Sequence[Run],
    left_out: Sequence[SkippedFolder],
    study: Study | None,
    overrides: Sequence[str] = (),
    looks: Looks | None = None,
) -> Findings:
    """Compute the findings of a report on these runs, for a study or without one.

    `overrides` change the study's recipes; `looks` are the recorded tests of its claims, to which
    that of these runs is added; it is the only one if they are not given. Raises UsageError if the
    runs that count have different metrics.
    """
    groups, more = group_study(study, runs, overrides, left_out) if study else group_runs(runs)
    metric = _metric(groups)
    groups = [replace(group, metric=metric) for group in groups]
    if looks:
        tested = _tested_seeds(study, groups, find_sweeps(groups, study, looks))
        looks = Looks(min(looks.first, *tested), max(looks.last, *tested)) if tested else looks
    else:
        looks = Looks(0, 0)
    by_name = {group.recipe.name: group for group in groups}
    return Findings(
        study=study,
        metric=metric,
        groups=groups,
        verdicts=[judge_against_published(group) for group in groups],
        baseline=by_name[study.baseline] if study else _reference(groups),
        looks=looks,
        decisions=[decide(claim, by_name, looks) for claim in study.claims] if study else [],
        sweeps=find_sweeps(groups, study, looks),
        speeds=measure_speeds(groups),
        skipped_folders=[*left_out, *more],
    )


def _tested_seeds(
    study: Study | None, groups: Sequence[RecipeRuns], sweeps: Sequence[BatchSizeSweep]
) -> list[int]:
    """Return the numbers of seeds with which claims and elbows are tested, in ascending order.

    The number of a pair of recipes is that of the one with fewer. One seed decides nothing.
    """
    by_name = {group.recipe.name: group for group in groups}
    claims = study.claims if study else []
    pairs = [(by_name[claim.recipe], by_name[claim.other]) for claim in claims]
    pairs += [(group, sweep.baseline) for sweep in sweeps for group in sweep.larger]
    complete = [pair for pair in pairs if not any(group.lacking for group in pair)]
    return sorted({min(len(group.runs) for group in pair) for pair in complete} - {0, 1})


def _metric(groups: Sequence[RecipeRuns]) -> Metric:
    """Return the metric that all runs share; raise UsageError if they have different ones."""
    runs = [run for group in groups for run in (*group.runs, *group.repeats)]
    for run in runs:
        if run.metric != runs[0].metric:
            raise UsageError(
                f"{displayed_path(runs[0].path)} is a run of {runs[0].metric.label} and "
                f"{displayed_path(run.path)} one of "
                f"{run.metric.label}, which cannot be compared; give runs of one of them"
            )
    return runs[0].metric if runs else TOP1


def _reference(groups: Sequence[RecipeRuns]) -> RecipeRuns | None:
    """Return the only recipe at its lr's reference batch as the baseline; None if not just one."""
    references = [
        group
        for group in groups
        if group.recipe.batch_size == group.recipe.schedule.reference_batch
    ]
    return references[0] if len(references) == 1 and len(groups) > 1 else None
