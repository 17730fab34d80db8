"""The runs of a report grouped by recipe: runs that differ only in their seed are one sample."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from lsgd import config
from lsgd.errors import UsageError
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.recipe.study import Entry, Study, without_start
from lsgd.report.run_folders import SkippedFolder
from lsgd.report.welch import SampleStats, sample_stats
from lsgd.rules.metric import TOP1, Metric
from lsgd.run.read import Run, has_failed, planned_run_folder


@dataclass(frozen=True)
class RecipeRuns:
    """One recipe of a report and its runs, which make one row of the main table."""

    label: str
    recipe: Recipe
    """The recipe of the runs, with the seed of any one of them."""
    seeds: list[int] | None
    """The seeds that the study plans, and all others that have been run; None without a study."""
    published: Recipe | None
    """The shipped recipe whose published number this recipe is compared with, if there is one."""
    runs: list[Run] = field(default_factory=list)
    """The first run of each seed by its folder, finished or diverged, ordered by seed."""
    repeats: list[Run] = field(default_factory=list)
    """Further runs of the same seeds, which are not independent."""
    failed_seeds: list[int] = field(default_factory=list)
    """The missing seeds whose run has failed."""
    begun_seeds: list[int] = field(default_factory=list)
    """The missing seeds whose run is active or was stopped."""
    metric: Metric = TOP1
    """The metric of all runs of the report."""
    counts_repeats: bool = False
    """Whether a seed counts by the mean of all its runs, and not by the first of them."""
    needed: int = 0
    """The number of seeds with which claims are tested; tests with fewer were further looks."""

    @property
    def counted(self) -> list[Run]:
        """The runs that count: the first of each seed, or all of them."""
        return [*self.runs, *self.repeats] if self.counts_repeats else self.runs

    def _sample(self, value: Callable[[Run], float | None]) -> SampleStats | None:
        """Return the statistics of a value over the seeds; None if no run has a finite one.

        The value of a seed is the mean over its runs that count.
        """
        values: dict[int, list[float]] = {}
        for run in self.counted:
            number = value(run)
            if number is not None and math.isfinite(number):
                values.setdefault(run.recipe.seed, []).append(number)
        if not values:
            return None
        return sample_stats([*map(statistics.fmean, values.values())], self.metric)

    @property
    def sample(self) -> SampleStats | None:
        """The statistics of the finished runs' finite final metrics; None if there are none."""
        return self._sample(lambda run: run.final_metric if run.finished else None)

    def sample_on(self, evaluation_set: str) -> SampleStats | None:
        """Return the statistics of the finished runs' metrics on an evaluation set, or None."""
        return self._sample(lambda run: run.number_on(evaluation_set) if run.finished else None)

    @property
    def claim_sample(self) -> SampleStats | None:
        """The statistics that decide claims, in which all runs count with their claim_value."""
        return self._sample(self.claim_value)

    def claim_value(self, run: Run) -> float:
        """Return the value with which a run counts in claims: its final metric if it has one.

        A diverged run counts at the chance level. One that ended before it reached its target, as
        by its patience, counts with the epochs or steps that it had, which is too low.
        """
        if run.finished and math.isfinite(run.final_metric):
            return run.final_metric
        return self._failed_value(run.epoch if run.finished else self.recipe.epochs)

    @property
    def chance_level(self) -> float:
        """The metric at chance level, with which a diverged run counts in claims.

        For a count until a target it is the count of the whole run, which is too low.
        """
        return self._failed_value(self.recipe.epochs)

    def _failed_value(self, epochs: int) -> float:
        """Return the chance level, or the count until a target of a run of this many epochs."""
        number = self.metric.chance_level(self.recipe.data.classes)
        if math.isfinite(number) or self.metric.base_metric is self.metric:
            return number
        metric = self.recipe.final_metric(self.metric.base_metric)
        return metric.final_metric({epochs: {metric.key: -math.inf}})

    @property
    def never_reached(self) -> list[Run]:
        """The finished runs that never reached the metric's target."""
        return [run for run in self.counted if run.finished and math.isinf(run.final_metric)]

    @property
    def failed_values(self) -> list[float]:
        """The different finite values of the runs that diverged or never reached the target."""
        failed = [*self.never_reached, *(run for run in self.counted if not run.finished)]
        return sorted(filter(math.isfinite, {*map(self.claim_value, failed)}))

    @property
    def censored(self) -> int:
        """The number of runs for which only a lower bound of their metric is known.

        These are runs that diverged or never reached the target, if the metric counts until one.
        They count with that value.
        """
        bound = math.isinf(self.metric.chance_level(self.recipe.data.classes))
        return (
            sum(not (run.finished and math.isfinite(run.final_metric)) for run in self.counted)
            * bound
        )

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(not run.finished for run in self.counted)

    @property
    def missing(self) -> list[int]:
        """The seeds of the study for which no run has finished or diverged."""
        ended = {run.recipe.seed for run in self.runs}
        return [seed for seed in self.seeds or [] if seed not in ended]

    @property
    def lacking(self) -> int:
        """The number of seeds, whichever, that claims on this recipe still need."""
        return max(0, self.needed - len(self.runs))


def trajectory(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's settings that decide a run's results, by flat key, without the seed."""
    flat = {}
    for key, value in recipe.trajectory().items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        # A setting without a group has an empty name, so its trailing dot is removed.
        flat.update({f"{key}.{name}".rstrip("."): setting for name, setting in inner})
    del flat["seed"]
    return flat


def differences(ours: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes would train differently, with both values."""
    mine, its = trajectory(ours), trajectory(other)
    return {
        key: (mine.get(key), its.get(key)) for key in (mine | its) if mine.get(key) != its.get(key)
    }


def format_change(change: tuple[str, tuple[Any, Any]]) -> str:
    """Format one difference between two recipes as text, our value first.

    >>> format_change(("schedule.warmup", ("none", "gradual")))
    'schedule.warmup=none, not gradual'
    """
    key, (mine, its) = change
    return f"{key}={_short(mine)}, not {_short(its)}"


def _short(value: Any) -> str:
    """Format the value of a recipe's setting as text, a long list as its length."""
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 5 else str(value)


def group_runs(runs: Sequence[Run]) -> tuple[list[RecipeRuns], list[SkippedFolder]]:
    """Group runs by recipe, ordered by minibatch and label; return groups and skipped folders."""
    done, left_out = _split_ended(runs)
    by_recipe: dict[str, list[Run]] = {}
    for run in done:
        by_recipe.setdefault(_key(run.recipe), []).append(run)
    recipes = [group[0].recipe for group in by_recipe.values()]
    groups = [
        _group(label, recipe, None, _published(recipe.name), members)
        for label, recipe, members in zip(
            _labels(recipes), recipes, by_recipe.values(), strict=True
        )
    ]
    return sorted(groups, key=lambda group: (group.recipe.batch_size, group.label)), left_out


def group_study(
    study: Study, runs: Sequence[Run], overrides: Sequence[str], no_runs: Sequence[SkippedFolder]
) -> tuple[list[RecipeRuns], list[SkippedFolder]]:
    """Group runs by the entries of a study; return the groups and the skipped folders.

    `overrides` change the entries. All runs of an entry count, also those of seeds that the study
    does not plan: a rule that leaves no choice among them. `no_runs` are folders from which no run
    can be read, such as one that has failed before its first step.
    """
    wanted = {
        entry.recipe: load_shipped_recipe(entry.file or entry.recipe, *overrides, *entry.words)
        for entry in study.entries
    }
    started = {entry.recipe for entry in study.entries if entry.start}

    def key(recipe: Recipe) -> str:
        # The start weights of an entry are those of another run for each seed.
        if recipe.name not in started:
            return _key(recipe)
        return f"{recipe.name} {_key(without_start(recipe))}"

    names = {key(recipe): name for name, recipe in wanted.items()}
    ours: dict[str, list[Run]] = {name: [] for name in wanted}
    left_out, considered = [], []
    for run in runs:
        name = names.get(key(run.recipe))
        if name in started and not run.recipe.model.start_sha256:
            name = None
        if name is None:
            left_out.append(SkippedFolder(run.path, _why_not(run.recipe, wanted)))
        else:
            considered.append(run)
    done, unfinished = _split_ended(considered)
    for run in done:
        ours[names[key(run.recipe)]].append(run)
    without_end = {folder.path.name: folder.path for folder in [*no_runs, *unfinished]}
    groups = [
        _group(
            entry.label,
            wanted[entry.recipe],
            sorted({*study.seeds, *(run.recipe.seed for run in ours[entry.recipe])}),
            _published_for(entry, wanted[entry.recipe]),
            ours[entry.recipe],
            counts_repeats=study.repeats == "mean",
            needed=study.needed_seeds,
        )
        for entry in study.entries
    ]
    for group in groups:
        for seed in group.missing:
            name = planned_run_folder(replace(group.recipe, seed=seed)).name
            if folder := without_end.get(name):
                (group.failed_seeds if has_failed(folder) else group.begun_seeds).append(seed)
    return groups, left_out + unfinished


def _group(
    label: str,
    recipe: Recipe,
    seeds: list[int] | None,
    published: Recipe | None,
    runs: list[Run],
    *,
    counts_repeats: bool = False,
    needed: int = 0,
) -> RecipeRuns:
    """Return a recipe with its runs: the first of each seed, and the others as repeats."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.recipe.seed, run)
    counted = [first[seed] for seed in sorted(first)]
    repeats = [run for run in runs if run is not first[run.recipe.seed]]
    return RecipeRuns(
        label,
        recipe,
        seeds,
        published,
        counted,
        repeats,
        counts_repeats=counts_repeats,
        needed=needed,
    )


def _split_ended(runs: Sequence[Run]) -> tuple[list[Run], list[SkippedFolder]]:
    """Split runs into those that finished or diverged, and skipped ones with the reasons."""
    done, left_out = [], []
    for run in runs:
        if run.finished or (run.diverged is not None and not run.recipe.rehearse):
            done.append(run)
        elif run.recipe.rehearse:
            left_out.append(
                SkippedFolder(run.path, f"a dry run: its {run.metric.plural} mean nothing")
            )
        elif not run.rows:
            left_out.append(SkippedFolder(run.path, "empty: metrics.jsonl has no rows"))
        else:
            left_out.append(SkippedFolder(run.path, f"{run.state}: it is running, or was stopped"))
    return done, left_out


def _why_not(recipe: Recipe, wanted: dict[str, Recipe]) -> str:
    """Return why a run with this recipe does not belong to a study."""
    if recipe.name not in wanted:
        return f"{recipe.name} is not in this study"
    changed = differences(recipe, wanted[recipe.name])
    what = ", ".join(map(format_change, changed.items()))
    return f"it differs from recipe={recipe.name}: {what}"


def _labels(recipes: Sequence[Recipe]) -> list[str]:
    """Return the name of each recipe, with the settings that differ among those of its name."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    settings = [trajectory(recipe) for recipe in recipes]
    for recipe, values in zip(recipes, settings, strict=True):
        by_name.setdefault(recipe.name, []).append(values)
    # Each recipe of a name differs from another one in a key that has several values.
    changed = {
        name: [
            key
            for key in dict.fromkeys(key for values in named for key in values)
            if any(values.get(key) != named[0].get(key) for values in named)
        ]
        for name, named in by_name.items()
    }
    return [
        ", ".join(
            [recipe.name, *(f"{key}={_short(values.get(key))}" for key in changed[recipe.name])]
        )
        for recipe, values in zip(recipes, settings, strict=True)
    ]


@cache
def load_shipped_recipe(name: str, *overrides: str) -> Recipe:
    """Load a recipe by its name, or from a user's own file, with overrides applied."""
    return config.load_recipe([format_override("recipe", name), *overrides])


def _published(name: str) -> Recipe | None:
    """Load the shipped recipe of this name; return None if its file or dataset is unusable."""
    try:
        return load_shipped_recipe(name) if name in config.sorted_recipe_names() else None
    except UsageError:
        return None


def _published_for(entry: Entry, wanted: Recipe) -> Recipe:
    """Load the recipe whose published number that of a study's entry is compared with.

    It is the wanted recipe itself if that is a user's own which only overrides complete, as by the
    folder of its images.
    """
    try:
        return load_shipped_recipe(entry.like or entry.file or entry.recipe)
    except UsageError:
        if entry.like or not entry.file:
            raise
        return wanted


def _key(recipe: Recipe) -> str:
    """Return a recipe's settings, without the seed, as text that identifies runs of one group."""
    return json.dumps(trajectory(recipe), sort_keys=True)
