"""The definition of a hyper-parameter search: a recipe, its search space, and the sampler."""

import math
import re
import sys
from dataclasses import dataclass, field, fields
from typing import Any

from lsgd.errors import UsageError
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields, at_least, check_limits, one_of, setting
from lsgd.suggestions import did_you_mean

SAMPLERS = ("grid", "random", "tpe", "gp")
PRUNING_RULES = ("median", "successive_halving")
SCALES = ("linear", "log")

KINDS = {key: entry.type for key, entry in all_fields(Recipe)}
"""The type of each field of a recipe, by its dotted key."""

Value = bool | int | float | str


@dataclass(frozen=True)
class NumericRange:
    """A numeric dimension of a hyper-parameter search: all numbers from `low` to `high`.

    It has whole numbers only if both ends are whole and the field is not a float.
    """

    key: str
    low: int | float
    high: int | float
    log: bool
    """Whether values are sampled uniformly on a log scale."""
    steps: int | None
    """The number of values on a grid, both ends included."""

    @property
    def is_integer(self) -> bool:
        """Whether this numeric range of a search space has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def extremes(self) -> list[Value]:
        """The smallest and the largest value of this numeric range."""
        return [self.low, self.high]

    @property
    def grid_values(self) -> list[Value]:
        """The grid values of this numeric range, ascending; raises UsageError without `steps`."""
        if self.steps is None:
            raise UsageError(
                f"sampler=grid needs the number of values of {self.key}; write steps: 5 beside "
                "its from and to"
            )
        values: list[Value] = []
        for step in range(self.steps):
            share = step / (self.steps - 1)
            value = self.low + share * (self.high - self.low)
            if self.log:
                value = self.low * (self.high / self.low) ** share
            # The ends stay exactly as written, whatever the rounding of the powers.
            exact: Value = [value, self.low, self.high][(step == 0) + 2 * (step == self.steps - 1)]
            values.append(round(exact) if self.is_integer else exact)  # type: ignore[arg-type]
        return list(dict.fromkeys(values))


@dataclass(frozen=True)
class CategoricalChoices:
    """A categorical dimension of a hyper-parameter search: a list of values."""

    key: str
    values: list[Value]

    @property
    def extremes(self) -> list[Value]:
        """All values of this categorical dimension, since it has no extremes."""
        return self.values

    @property
    def grid_values(self) -> list[Value]:
        """All values of this categorical dimension, in the order of the search's file."""
        return self.values


Dimension = NumericRange | CategoricalChoices


@dataclass(frozen=True)
class Pruning:
    """The pruning settings of a search: when trials are stopped for being worse than others."""

    rule: str = field(metadata=one_of(*PRUNING_RULES))
    """The pruning rule: median or successive_halving.
    median: stop a trial that is worse than half of the others, whatever it was in earlier epochs or
    with another seed. successive_halving: stop a trial that is not among the best quarter at epochs
    1, 4, 16, … (Li et al. 2018)."""
    after_trials: int = setting(5, at_least(0))
    """The number of finished trials before the median rule stops the first one."""
    after_epochs: int = setting(1, at_least(1))
    """The number of epochs, over all seeds of a trial, before it may be stopped."""


@dataclass(frozen=True)
class Search:
    """The definition of a hyper-parameter search; each trial is trained once with every seed."""

    name: str
    title: str
    recipe: str
    space: dict[str, Any]
    """The search space: `{from, to, scale, steps}` or `{choices}` for each searched field."""
    trials: int = field(metadata=at_least(1))
    """The largest number of trials."""
    words: list[str] = field(default_factory=list)
    """The `key=value` overrides that hold for every trial."""
    sampler: str = setting("tpe", one_of(*SAMPLERS))
    sampler_seed: int = setting(0, at_least(0))
    seeds: list[int] = field(default_factory=lambda: [0])
    """The seeds that each trial is trained with; its value is the mean of their final metrics."""
    prune: Pruning | None = None
    holdout_seeds: list[int] = field(default_factory=list)
    """The holdout seeds for the final comparison of the best trial with the unchanged recipe.
    They differ from `seeds`, by which the best trial was selected."""
    recipe_file: str | None = None
    """The path of the recipe `recipe` if it is a user's own; lsgd sets it, no search file does."""
    file: str | None = None
    """The path of the file if the search is a user's own; lsgd sets it, no search file does."""
    line: list[str] = field(default_factory=list)
    """The overrides of the command line that make up a search without a file."""

    @property
    def recipe_override(self) -> str:
        """The override that chooses the recipe of this search, such as recipe=digits."""
        return format_override("recipe", self.recipe_file or self.recipe)

    @property
    def command_arguments(self) -> list[str]:
        """The arguments of `lsgd search` that choose this search."""
        return self.line or [format_override("+search", self.file or self.name)]

    @property
    def dimensions(self) -> list[Dimension]:
        """The dimensions of the search space, in file order; raises UsageError if invalid."""
        return [_dimension(self.name, key, given) for key, given in self.space.items()]

    @property
    def trial_count(self) -> int:
        """The number of trials of this search: `trials`, or the size of a smaller grid."""
        if self.sampler != "grid":
            return self.trials
        return min(self.trials, math.prod(len(each.grid_values) for each in self.dimensions))


NOT_IN_FILES = ("recipe_file", "file", "line")
"""The fields of a search that its file does not have."""
SEARCH_FIELDS = [
    entry.name for entry in fields(Search) if entry.name not in ("name", *NOT_IN_FILES)
]


def _dimension(search: str, key: str, given: Any) -> Dimension:
    where = f"search {search}: space.{key}"
    if not isinstance(given, dict) or not given:
        raise UsageError(
            f"{where}={given} is not a search space; write {{from: …, to: …}} or {{choices: […]}}"
        )
    known = ["from", "to", "scale", "steps", "choices"]
    for word in given:
        if word not in known:
            raise UsageError(f"{where} has {word!r}; {did_you_mean(str(word), known)}")
    if "choices" in given:
        choices = given["choices"]
        if len(given) > 1 or not isinstance(choices, list) or not choices:
            raise UsageError(
                f"{where}={given} is not a list of choices; write {{choices: [a, b]}} alone"
            )
        if len(set(map(repr, choices))) < len(choices):
            raise UsageError(f"{where} has a choice twice, in {choices}; write each once")
        if wrong := [each for each in choices if not isinstance(each, Value)]:
            raise UsageError(
                f"{where} has the choice {wrong[0]}; write numbers, texts, true or false"
            )
        return CategoricalChoices(key, choices)
    low, high = (_number(f"{where}.{end}", given.get(end)) for end in ("from", "to"))
    if KINDS.get(key) in (float, float | None):
        low, high = float(low), float(high)
    scale, steps = given.get("scale", "linear"), given.get("steps")
    if low >= high:
        raise UsageError(f"{where} goes from {low} to {high}; write the smaller number as from")
    if scale not in SCALES:
        raise UsageError(f"{where}.scale={scale} is unknown; write {' or '.join(SCALES)}")
    if scale == "log" and low <= 0:
        raise UsageError(f"{where} begins at {low}, which has no logarithm; write from above 0")
    if steps is not None and (type(steps) is not int or steps < 2):
        raise UsageError(f"{where}.steps={steps} makes no grid; write a whole number of 2 or more")
    return NumericRange(key, low, high, scale == "log", steps)


def _number(where: str, value: Any) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:
        shown = "missing" if value is None else f"{value!r}, which is not a number"
        raise UsageError(f"{where} is {shown}; write one, such as 0.01")
    number: int | float = value
    return number


def check_search(search: Search, recipes: list[str]) -> None:
    """Raise UsageError if a search's definition is invalid, or its recipe is not in `recipes`."""
    where = f"search {search.name}"
    if not re.fullmatch(r"\w+", search.name):
        raise UsageError(
            f"search {search.name!r} does not make a folder's name; write letters and _"
        )
    if search.recipe not in recipes:
        raise UsageError(
            f"{where} has the recipe {search.recipe}, which does not exist; "
            f"{did_you_mean(search.recipe, recipes)}"
        )
    if not search.space:
        raise UsageError(f"{where} has an empty space; write at least one field of the recipe")
    check_limits(search)
    if not _are_seeds(search.seeds) or not search.seeds:
        raise UsageError(f"{where} has seeds={search.seeds}; write different numbers, 0 or more")
    if not _are_seeds(search.holdout_seeds) or set(search.holdout_seeds) & set(search.seeds):
        raise UsageError(
            f"{where} has holdout_seeds={search.holdout_seeds}; write distinct numbers that are "
            f"not among seeds={search.seeds}, which select the best trial"
        )
    dimensions = search.dimensions
    if search.sampler == "grid":
        for dimension in dimensions:
            assert dimension.grid_values  # refused without steps


def _are_seeds(seeds: list[int]) -> bool:
    return len(set(seeds)) == len(seeds) and all(seed >= 0 for seed in seeds)
