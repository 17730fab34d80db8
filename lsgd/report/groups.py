"""Runs grouped by recipe: those that differ in nothing but the seed are samples of one number."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lsgd import config
from lsgd.recipe import Recipe
from lsgd.recipe.study import Study
from lsgd.report.search import LeftOut
from lsgd.report.welch import Sample, sample
from lsgd.rules import schedule
from lsgd.rules.metric import TOP1, Metric
from lsgd.run.read import Run


@dataclass(frozen=True)
class Group:
    """One recipe and its runs: a row of the table."""

    label: str
    recipe: Recipe
    """The recipe of its runs; the seed in it is that of any one of them."""
    seeds: list[int] | None
    """The seeds that the study asks for; None without a study."""
    published: Recipe | None
    """The shipped recipe whose target this one is held against, if there is one."""
    runs: list[Run] = field(default_factory=list)
    """The run that counts for each seed, finished or diverged, by seed."""
    repeats: list[Run] = field(default_factory=list)
    """More runs of the same seeds; they do not count, as they are not independent."""
    metric: Metric = TOP1
    """The metric of all runs of the report."""

    @property
    def sample(self) -> Sample | None:
        """The numbers of its finished runs that have one; None if there are none."""
        numbers = [run.number for run in self.runs if run.finished]
        known = [number for number in numbers if math.isfinite(number)]
        return sample(known) if known else None

    def sample_on(self, evaluation_set: str) -> Sample | None:
        """The numbers on an evaluation set of its finished runs; None if there are none."""
        numbers = [run.number_on(evaluation_set) for run in self.runs if run.finished]
        known = [number for number in numbers if number is not None and math.isfinite(number)]
        return sample(known) if known else None

    @property
    def claimed(self) -> Sample | None:
        """The numbers that decide claims: those of all its runs, a guess for one that diverged or
        never had the rate that it was to reach."""
        numbers = [run.number if run.finished else math.inf for run in self.runs]
        known = [number if math.isfinite(number) else self.guess for number in numbers]
        return sample(known) if known else None

    @property
    def guess(self) -> float:
        """The number of guessing, with which a diverged run counts in claims; of a count until a
        rate it is that of the whole run, which is too few."""
        number = self.metric.guess(self.recipe.data.classes)
        if math.isfinite(number):
            return number
        metric = self.recipe.number_metric(self.metric.rate)
        return metric.number({self.recipe.epochs: {metric.key: -math.inf}})

    @property
    def never(self) -> int:
        """The number of its runs that came to their end without the rate that they were to have."""
        return sum(run.finished and math.isinf(run.number) for run in self.runs)

    @property
    def diverged(self) -> int:
        """The number of its runs that diverged."""
        return sum(not run.finished for run in self.runs)

    @property
    def missing(self) -> list[int]:
        """Seeds of the study without a run that has come to its end, finished or diverged."""
        ended = {run.recipe.seed for run in self.runs}
        return [seed for seed in self.seeds or [] if seed not in ended]

    @property
    def lr(self) -> float:
        """The learning rate after the warmup and before the first drop."""
        rule = self.recipe.schedule
        return schedule.scaled_lr(
            self.recipe.batch_size,
            reference_lr=rule.reference_lr,
            reference_batch=rule.reference_batch,
            scaling=rule.scaling,
        )


def trajectory(recipe: Recipe) -> dict[str, Any]:
    """What a run computes, but for the seed: settings by flat keys such as `schedule.warmup`."""
    flat = {}
    for key, value in recipe.trajectory().items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        # A setting without a group has the empty name, and loses its dot.
        flat.update({f"{key}.{name}".rstrip("."): setting for name, setting in inner})
    del flat["seed"]
    return flat


def differences(ours: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The keys of the trajectory in which two recipes differ, with both values."""
    mine, its = trajectory(ours), trajectory(other)
    return {
        key: (mine.get(key), its.get(key)) for key in (mine | its) if mine.get(key) != its.get(key)
    }


def in_words(change: tuple[str, tuple[Any, Any]]) -> str:
    """A setting in which two recipes differ, as words.

    >>> in_words(("schedule.warmup", ("none", "gradual")))
    'schedule.warmup=none, not gradual'
    """
    key, (mine, its) = change
    return f"{key}={_short(mine)}, not {_short(its)}"


def _short(value: Any) -> str:
    """The value as text; of a list that may be long, such as images left out, its length."""
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 5 else str(value)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[LeftOut]]:
    """The groups of these runs, ordered by minibatch and label, and the folders left out."""
    done, left_out = _done(runs)
    by_recipe: dict[str, list[Run]] = {}
    for run in done:
        by_recipe.setdefault(_key(run.recipe), []).append(run)
    recipes = [group[0].recipe for group in by_recipe.values()]
    groups = [
        _group(_label(recipe, recipes), recipe, None, _published(recipe.name), members)
        for recipe, members in zip(recipes, by_recipe.values(), strict=True)
    ]
    return sorted(groups, key=lambda group: (group.recipe.batch_size, group.label)), left_out


def group_study(
    study: Study, runs: Sequence[Run], words: Sequence[str]
) -> tuple[list[Group], list[LeftOut]]:
    """A group for each entry of the study, changed by these words, and the folders left out."""
    wanted = {entry.recipe: shipped(entry.recipe, *words, *entry.words) for entry in study.entries}
    names = {_key(recipe): name for name, recipe in wanted.items()}
    ours: dict[str, list[Run]] = {name: [] for name in wanted}
    left_out, considered = [], []
    for run in runs:
        name = names.get(_key(run.recipe))
        if name is None:
            left_out.append(LeftOut(run.path, _why_not(run.recipe, wanted)))
        elif run.recipe.seed not in study.seeds:
            left_out.append(LeftOut(run.path, f"seed {run.recipe.seed} is none of the study's"))
        else:
            considered.append(run)
    done, unfinished = _done(considered)
    for run in done:
        ours[names[_key(run.recipe)]].append(run)
    groups = [
        _group(
            entry.label,
            wanted[entry.recipe],
            study.seeds,
            shipped(entry.like or entry.recipe),
            ours[entry.recipe],
        )
        for entry in study.entries
    ]
    return groups, left_out + unfinished


def _group(
    label: str, recipe: Recipe, seeds: list[int] | None, published: Recipe | None, runs: list[Run]
) -> Group:
    """A group in which the first run of each seed counts, whatever its end."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.recipe.seed, run)
    counted = [first[seed] for seed in sorted(first)]
    repeats = [run for run in runs if run is not first[run.recipe.seed]]
    return Group(label, recipe, seeds, published, counted, repeats)


def _done(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """The runs that have come to an end, and the others with the reason why they do not count."""
    done, left_out = [], []
    for run in runs:
        if run.finished or (run.diverged is not None and not run.recipe.rehearse):
            done.append(run)
        elif run.recipe.rehearse:
            left_out.append(LeftOut(run.path, f"a rehearsal: its {run.metric.plural} mean nothing"))
        elif not run.rows:
            left_out.append(LeftOut(run.path, "empty: metrics.jsonl has no rows"))
        else:
            left_out.append(LeftOut(run.path, f"{run.state}: it is running, or was stopped"))
    return done, left_out


def _why_not(recipe: Recipe, wanted: dict[str, Recipe]) -> str:
    if recipe.name not in wanted:
        return f"{recipe.name} is not in this study"
    changed = differences(recipe, wanted[recipe.name])
    what = ", ".join(map(in_words, changed.items()))
    return f"it differs from +recipe={recipe.name}: {what}"


def _label(recipe: Recipe, others: list[Recipe]) -> str:
    """The name of the recipe, and its differences from the others of that name."""
    named = [other for other in others if other.name == recipe.name and other is not recipe]
    changed = {
        key: mine for other in named for key, (mine, _) in differences(recipe, other).items()
    }
    return ", ".join([recipe.name, *(f"{key}={_short(value)}" for key, value in changed.items())])


@cache
def shipped(name: str, *words: str) -> Recipe:
    """The recipe that lsgd ships under this name, changed by these words."""
    return config.load_recipe([f"+recipe={name}", *words])


def _published(name: str) -> Recipe | None:
    return shipped(name) if name in config.recipes() else None


def _key(recipe: Recipe) -> str:
    return json.dumps(trajectory(recipe), sort_keys=True)
