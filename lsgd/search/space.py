"""The search space of a recipe: points as overrides, and the runs of each point."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from lsgd import config
from lsgd.errors import UsageError
from lsgd.planned import FORBIDDEN_KEYS, PlannedRun
from lsgd.recipe import Recipe
from lsgd.recipe.search import Search
from lsgd.search.trial import FAILED, Trial, Values

CORNERS = 64
"""The most corners of a search space that are checked before training.

If it has more, each field is checked at its ends while the others are at their lower ends.
"""
FIXED = FORBIDDEN_KEYS | {
    "recipe": "a search has its recipe; write search=NAME and overrides for all trials",
    "seed": "write seeds=[0] for the seeds of every point, or sampler_seed=1 for another search",
}
"""The keys that cannot be overridden in a search, and what to write instead."""


def overrides_of(values: Values) -> list[str]:
    """Return the values of searched fields as `key=value` overrides of a recipe, without rounding.

    >>> overrides_of({"optim.momentum": 0.1, "optim.nesterov": False})
    ['optim.momentum=0.1', 'optim.nesterov=false']
    """
    shown = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in values.items()}
    return [f"{key}={value}" for key, value in shown.items()]


def format_values(values: Values) -> str:
    """Format the values of searched fields as short text with three digits.

    >>> format_values({"schedule.reference_lr": 0.0123456, "model.hidden": 120})
    'reference_lr 0.0123, hidden 120'
    """
    return ", ".join(
        f"{key.rpartition('.')[2]} {f'{v:.3g}' if isinstance(v, float) else v}"
        for key, v in values.items()
    )


class SearchSpace:
    """The space of a search: its recipe, the overrides of all trials, and the fields to vary."""

    def __init__(self, search: Search, overrides: Sequence[str]) -> None:
        """Join the search's and the command line's overrides; raise UsageError for a fixed key."""
        self.search = search
        self.overrides = [*search.words, *overrides]
        for word in self.overrides:
            key = word.lstrip("+~").partition("=")[0]
            if key in FIXED:
                raise UsageError(f"'{word}' cannot be overridden in a search: {FIXED[key]}")
            if key in search.space:
                raise UsageError(
                    f"'{word}' cannot be overridden in a search that varies {key}; leave it out"
                )

    def recipe(self, values: Values) -> Recipe:
        """Return the recipe at a point of the space, with seed 0; raise UsageError if invalid."""
        overrides = [self.search.recipe_override, *self.overrides, *overrides_of(values)]
        try:
            return config.load_recipe(overrides)
        except UsageError as error:
            if not values:
                raise
            at = " ".join(overrides_of(values))
            raise UsageError(f"the recipe refuses the trial {at}: {error}") from None

    def planned_runs(self, values: Values, seeds: Sequence[int]) -> list[PlannedRun]:
        """Return a point's runs, one for each seed; an empty point means the unchanged recipe."""
        recipe, overrides = self.recipe(values), [*self.overrides, *overrides_of(values)]
        return [
            PlannedRun(
                replace(recipe, seed=seed), [f"seed={seed}", *overrides], self.search.recipe_file
            )
            for seed in seeds
        ]

    def valid_runs(self, values: Values, seeds: Sequence[int]) -> list[PlannedRun]:
        """Return a point's runs, one for each seed, or none if the recipe is invalid there."""
        try:
            return self.planned_runs(values, seeds)
        except UsageError:
            return []

    @cached_property
    def most_epochs(self) -> int:
        """The largest number of epochs that a run of any trial trains.

        Steps reported to Optuna are counted as if each seed had as many, so that a step is the same
        epoch of the same seed in all trials, also where `epochs` is searched.
        """
        if "epochs" not in self.search.space:
            return self.recipe({}).epochs
        return max(recipe.epochs for recipe in self.corner_recipes[1:])  # without the unchanged one

    def epochs_until(self, step: int, epochs: int) -> int:
        """Convert a step reported to Optuna to epochs trained, if each run has `epochs` of them."""
        seeds, epoch = divmod(step, self.most_epochs)
        return seeds * epochs + epoch

    def check(self) -> None:
        """Raise UsageError if the recipe is invalid unchanged or at a corner of the space."""
        assert self.corner_recipes

    @cached_property
    def corner_recipes(self) -> list[Recipe]:
        """The recipe unchanged and at the corners of the space; raises UsageError if invalid."""
        dimensions = self.search.dimensions
        ends = [[(dimension.key, end) for end in dimension.extremes] for dimension in dimensions]
        corners = list(itertools.islice(itertools.product(*ends), CORNERS + 1))
        if len(corners) > CORNERS:
            first = [each[0] for each in ends]
            corners = [
                (*first[:place], end, *first[place + 1 :])
                for place, each in enumerate(ends)
                for end in each
            ]
        return [self.recipe({}), *(self.recipe(dict(corner)) for corner in corners)]


def crashed_trials(space: SearchSpace, trials: Sequence[Trial]) -> list[Trial]:
    """Return the failed trials of a search that may be retried.

    Those with a run that diverged, and those of which the recipe is invalid, would fail again.
    """

    def would_fail_again(trial: Trial) -> bool:
        planned = space.valid_runs(trial.values, space.search.seeds)
        runs = [each.saved_run for each in planned]
        return not planned or any(run is not None and run.diverged is not None for run in runs)

    return [trial for trial in trials if trial.state == FAILED and not would_fail_again(trial)]
