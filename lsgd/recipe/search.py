"""The definition of a search: a recipe, the space of what is tried, and how the next is chosen."""

import math
import re
from dataclasses import dataclass, field, fields
from typing import Any

from lsgd.errors import Refused
from lsgd.nearest import did_you_mean
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields

SAMPLERS = ("grid", "random", "tpe", "gp")
PRUNING_RULES = ("median", "successive_halving")
SCALES = ("linear", "log")

KINDS = {key: entry.type for key, entry in all_fields(Recipe)}
"""The type of each field of a recipe, by its dotted key."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`: whole ones if both are, of a field that takes these."""

    key: str
    low: int | float
    high: int | float
    log: bool
    """Whether equal ratios are equally likely, and not equal differences."""
    steps: int | None
    """How many of them a grid has, from end to end."""

    @property
    def whole(self) -> bool:
        """Whether it has whole numbers alone."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> list[Value]:
        """The extreme values."""
        return [self.low, self.high]

    @property
    def grid(self) -> list[Value]:
        """The values that a grid has of it, ascending; raises Refused without `steps`."""
        if self.steps is None:
            raise Refused(
                f"sampler=grid needs the number of values of {self.key}; write steps: 5 beside "
                "its from and to"
            )
        values: list[Value] = []
        for step in range(self.steps):
            share = step / (self.steps - 1)
            value = self.low + share * (self.high - self.low)
            if self.log:
                value = self.low * (self.high / self.low) ** share
            # The ends are as they are written, whatever the powers make of them.
            exact: Value = [value, self.low, self.high][(step == 0) + 2 * (step == self.steps - 1)]
            values.append(round(exact) if self.whole else exact)  # type: ignore[arg-type]
        return list(dict.fromkeys(values))


@dataclass(frozen=True)
class Choices:
    """These values alone."""

    key: str
    values: list[Value]

    @property
    def ends(self) -> list[Value]:
        """All of them, since none lies between two others."""
        return self.values

    @property
    def grid(self) -> list[Value]:
        """All of them, as they stand."""
        return self.values


Dimension = Range | Choices


@dataclass  # frozen, OmegaConf would put no values of a file into it
class Pruning:
    """When a trial is given up: its value after an epoch is held against those of others then."""

    rule: str
    """median: worse than half of them. successive_halving: not among the best quarter at epochs 1,
    4, 16, … (Li et al. 2018)."""
    after_trials: int = 5
    """The trials that are finished before the first is given up, by the median."""
    after_epochs: int = 1
    """The epochs, of all seeds of a point, that every trial gets."""


@dataclass(frozen=True)
class Search:
    """One search for hyper-parameters; a point of its space is trained once with every seed."""

    name: str
    title: str
    recipe: str
    space: dict[str, Any]
    """Of every field that is searched: `{from, to, scale, steps}`, or `{choices}`."""
    trials: int
    """How many points are tried."""
    words: list[str] = field(default_factory=list)
    """`key=value` words that hold for every trial."""
    sampler: str = "tpe"
    sampler_seed: int = 0
    seeds: list[int] = field(default_factory=lambda: [0])
    """The seeds that a point is trained with; its value is the mean of their numbers."""
    prune: Pruning | None = None
    compared_seeds: list[int] = field(default_factory=list)
    """The seeds with which the best point and the recipe's own values are trained in the end: other
    ones than `seeds`, by which the best was chosen."""

    @property
    def dimensions(self) -> list[Dimension]:
        """The space, in the order of its file; raises Refused for what is none."""
        return [_dimension(self.name, key, given) for key, given in self.space.items()]

    @property
    def points(self) -> int:
        """How many points it has: `trials`, or all of a grid that has fewer."""
        if self.sampler != "grid":
            return self.trials
        return min(self.trials, math.prod(len(each.grid) for each in self.dimensions))


SEARCH_FIELDS = [entry.name for entry in fields(Search) if entry.name != "name"]


def _dimension(search: str, key: str, given: Any) -> Dimension:
    where = f"search {search}: space.{key}"
    if not isinstance(given, dict) or not given:
        raise Refused(f"{where}={given} is no space; write {{from: …, to: …}} or {{choices: […]}}")
    known = ["from", "to", "scale", "steps", "choices"]
    for word in given:
        if word not in known:
            raise Refused(f"{where} has {word!r}; {did_you_mean(str(word), known)}")
    if "choices" in given:
        choices = given["choices"]
        if len(given) > 1 or not isinstance(choices, list) or not choices:
            raise Refused(f"{where}={given} is no list of choices; write {{choices: [a, b]}} alone")
        if len(set(map(repr, choices))) < len(choices):
            raise Refused(f"{where} has a choice twice, in {choices}; write each once")
        if wrong := [each for each in choices if not isinstance(each, Value)]:
            raise Refused(f"{where} has the choice {wrong[0]}; write numbers, texts, true or false")
        return Choices(key, choices)
    low, high = (_number(f"{where}.{end}", given.get(end)) for end in ("from", "to"))
    if KINDS.get(key) in (float, float | None):
        low, high = float(low), float(high)
    scale, steps = given.get("scale", "linear"), given.get("steps")
    if low >= high:
        raise Refused(f"{where} goes from {low} to {high}; write the smaller number as from")
    if scale not in SCALES:
        raise Refused(f"{where}.scale={scale} is unknown; write {' or '.join(SCALES)}")
    if scale == "log" and low <= 0:
        raise Refused(f"{where} begins at {low}, which has no logarithm; write from above 0")
    if steps is not None and (type(steps) is not int or steps < 2):
        raise Refused(f"{where}.steps={steps} makes no grid; write a whole number of 2 or more")
    return Range(key, low, high, scale == "log", steps)


def _number(where: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        shown = "missing" if value is None else f"{value!r}, which is no number"
        raise Refused(f"{where} is {shown}; write one, such as 0.01")
    return value


def check_search(search: Search, recipes: list[str]) -> None:
    """Raise Refused for a search that makes no sense, or has a recipe not among `recipes`."""
    where = f"search {search.name}"
    if not re.fullmatch(r"\w+", search.name):
        raise Refused(f"search {search.name!r} does not make a folder's name; write letters and _")
    if search.recipe not in recipes:
        raise Refused(
            f"{where} has the recipe {search.recipe}, which does not exist; "
            f"{did_you_mean(search.recipe, recipes)}"
        )
    if not search.space:
        raise Refused(f"{where} has an empty space; write at least one field of the recipe")
    for number, name in ((search.trials, "trials"), (search.sampler_seed + 1, "sampler_seed")):
        if number < 1:
            raise Refused(f"{where}: {name} is too small; write {1 if name == 'trials' else 0}")
    if search.sampler not in SAMPLERS:
        raise Refused(f"sampler={search.sampler} is unknown; write one of {', '.join(SAMPLERS)}")
    if not _are_seeds(search.seeds) or not search.seeds:
        raise Refused(f"{where} has seeds={search.seeds}; write different numbers, 0 or more")
    if not _are_seeds(search.compared_seeds) or set(search.compared_seeds) & set(search.seeds):
        raise Refused(
            f"{where} has compared_seeds={search.compared_seeds}; write different numbers that are "
            f"not among seeds={search.seeds}, by which the best point is chosen"
        )
    if search.prune:
        _check_pruning(search.prune)
    dimensions = search.dimensions
    if search.sampler == "grid":
        for dimension in dimensions:
            assert dimension.grid  # refused without steps


def _are_seeds(seeds: list[int]) -> bool:
    return len(set(seeds)) == len(seeds) and all(seed >= 0 for seed in seeds)


def _check_pruning(prune: Pruning) -> None:
    if prune.rule not in PRUNING_RULES:
        raise Refused(f"prune.rule={prune.rule} is unknown; write {' or '.join(PRUNING_RULES)}")
    if prune.after_trials < 0 or prune.after_epochs < 1:
        raise Refused(
            f"prune has after_trials={prune.after_trials} and after_epochs={prune.after_epochs}; "
            "write 0 or more, and 1 or more"
        )
