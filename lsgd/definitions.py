"""Shipped and users' own definitions by name: studies, searches and published points."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from yaml import YAMLError

from lsgd import paths
from lsgd.config import OverrideError, parse_overrides, read_yaml, values_of_own_file
from lsgd.errors import UsageError
from lsgd.job.command import matching
from lsgd.override_syntax import format_override, key_and_value
from lsgd.own_parts import first_line
from lsgd.recipe.fields import all_fields
from lsgd.recipe.overrides import check_overrides, sorted_recipe_names
from lsgd.recipe.own_files import (
    OwnFile,
    find_own_file,
    find_recipe,
    missing_file_message,
    own_names,
    read_own_file,
)
from lsgd.recipe.published_points import PublishedPoints, check_points
from lsgd.recipe.search import SEARCH_FIELDS, Search, check_search
from lsgd.recipe.study import Entry, Study, check_study
from lsgd.typed import FieldError, make_typed, merge

T = TypeVar("T")
Definition = TypeVar("Definition", Study, Search)


def load_study(name: str) -> Study:
    """Load and check the study `recipes/study/NAME.yaml`, or in a user's own file.

    `name` is its name or the path of its file. Raises UsageError.
    """
    file = _own_definition("study", name, study_names())
    study = _load_definition(Study, "study", name, hint="see the available studies", own=file)
    try:
        _check_fields_of_files("study", study.name, study, *study.entries)
        found = {entry.recipe: _find_recipe(entry.recipe, file) for entry in study.entries}

        def name_of(recipe: str) -> str:
            return found.get(recipe, (recipe, None))[0]

        study = replace(
            study,
            file=str(file.path) if file else None,
            baseline=name_of(study.baseline),
            quick=[name_of(recipe) for recipe in study.quick],
            entries=[
                replace(entry, recipe=name_of(entry.recipe), file=found[entry.recipe][1])
                for entry in study.entries
            ],
            claims=[
                replace(claim, recipe=name_of(claim.recipe), other=name_of(claim.other))
                for claim in study.claims
            ],
        )
        own = [entry.recipe for entry in study.entries if entry.file]
        check_study(study, [*sorted_recipe_names(), *own])
    except UsageError as refusal:
        raise _located(refusal, file) from None
    return study


def load_search(name: str, *overrides: str) -> Search:
    """Load and check the search `recipes/search/NAME.yaml`, with overrides such as `trials=60`.

    `name` is its name, or the path of a user's own file. Raises UsageError. It does not check that
    the recipe accepts the points of the search space.
    """
    file = _own_definition("search", name, search_names())
    page = paths.display_path(paths.recipes_dir() / "README.md")
    hint = f"a search has {', '.join(SEARCH_FIELDS)}, as {page} says"
    try:
        search = _load_definition(Search, "search", name, *overrides, hint=hint, own=file)
    except YAMLError:
        raise UsageError(
            f"a value in {' '.join(overrides)} cannot be read; close its brackets"
        ) from None
    try:
        _check_fields_of_files("search", search.name, search)
        if file and any("skip_list" in each for each in (*search.words, *search.space)):
            raise UsageError(
                f"search {search.name} names a data.skip_list, which is another file; write it on "
                "the command line"
            )
        recipe, recipe_file = _find_recipe(search.recipe, file)
        where = str(file.path) if file else None
        search = replace(search, recipe=recipe, recipe_file=recipe_file, file=where)
        check_search(search, [*sorted_recipe_names(), *([recipe] if recipe_file else [])])
    except UsageError as refusal:
        raise _located(refusal, file) from None
    return search


def search_over(recipe: str, lists: Sequence[str], *overrides: str) -> Search:
    """Make the grid search of a recipe over lists of values, such as optim.momentum=[0.8,0.9].

    `recipe` is the recipe's name or the path of its file, and `overrides` are of the search, such
    as `seeds=[0,1]`. Raises UsageError.
    """
    chosen = format_override("recipe", recipe)
    name, file = find_recipe(recipe, Path())
    own = [name] if file else []
    if not own:
        check_overrides([chosen])
    try:
        space = {
            # By another key, since OmegaConf reads brackets in this one.
            key: {"choices": parse_overrides([f"values={value}"], ())["values"]}
            for key, value in map(key_and_value, lists)
        }
        ends = [key.rpartition(".")[2] for key in space]
        values = {
            "title": f"{' and '.join(ends)} of {name}",
            "recipe": name,
            "space": space,
            "sampler": "grid",
            "trials": max(1, math.prod(len(each["choices"]) for each in space.values())),
        }
        base = {"name": re.sub(r"\W", "_", "_".join([name, *ends]))}
        search = _merge_definition(Search, base, values, overrides)
    except (YAMLError, OverrideError, FieldError) as error:
        raise UsageError(
            f"{' '.join([*lists, *overrides])} cannot be read ({first_line(error)}); write lists "
            "in brackets, such as 'schedule.reference_lr=[0.05,0.1]'"
        ) from None
    search = replace(search, recipe_file=file, line=[chosen, *lists])
    check_search(search, [*sorted_recipe_names(), *own])
    return search


def _own_definition(group: str, name: str, known: Sequence[str]) -> OwnFile | None:
    """Read a user's own file of a study or search; return None for a shipped one.

    Raises UsageError if there is neither, or a user's own has the name of a shipped one.
    """
    if name in known:
        return None
    path = find_own_file(name)
    if path is None:
        raise UsageError(missing_file_message(f"{group}={name}", name, known))
    if path.stem in known or not re.fullmatch(r"\w[\w.+-]*", path.stem):
        raise UsageError(
            f"{path} would make a {group} {path.stem}, which is the name of a shipped one or no "
            "name of a folder; rename the file"
        )
    file = read_own_file(path, may_refer=False)
    file.check_kind(group)
    return file


def _check_fields_of_files(group: str, name: str, *definitions: Study | Search | Entry) -> None:
    """Raise UsageError for a field that lsgd fills in and a study's or search's file cannot set."""
    for definition in definitions:
        for key in ("file", "recipe_file", "line", "claim_seeds"):
            if getattr(definition, key, None):
                raise UsageError(f"{group} {name} has the field {key}; leave it out")


def _find_recipe(text: str, file: OwnFile | None) -> tuple[str, str | None]:
    """Return the name of a recipe in a study or search, and its file if it is a user's own."""
    return find_recipe(text, file.path.parent) if file else (text, None)


def _located(refusal: UsageError, file: OwnFile | None) -> UsageError:
    """Return the refusal of a user's own study or search, with its file and line."""
    if file is None:
        return refusal
    return UsageError(f"{file.locate(str(refusal)) or file.shown}: {refusal}")


def load_points(name: str) -> PublishedPoints:
    """Load and check convergence points, `recipes/points/NAME.yaml`; raises UsageError."""
    points = _load_definition(PublishedPoints, "points", name, hint="see the available points")
    check_points(points)
    return points


def _load_definition(
    kind: type[T], group: str, name: str, *overrides: str, hint: str, own: OwnFile | None = None
) -> T:
    """Load a study, search or points file `recipes/GROUP/NAME.yaml` as a dataclass, with overrides.

    `own` is a user's own file in its place. Raises UsageError, and YAMLError for an override that
    cannot be parsed.
    """
    if own:
        name = own.path.stem
        if "name" in own.lines:
            own.refuse(own.lines["name"], f"a {group} has the name of its file; leave out name")
        values = values_of_own_file(own, kind)
    else:
        values = read_yaml(paths.recipes_dir() / group / f"{name}.yaml")
    try:
        return _merge_definition(kind, {"name": name}, values, overrides)
    except (OverrideError, FieldError) as error:
        refusal = UsageError(f"{group} {name}: {first_line(error)}; {hint}")
        if own and isinstance(error, FieldError) and (line := own.line_of(error.key)):
            own.refuse(line, str(refusal))
        raise _located(refusal, own) from None


def _merge_definition(
    kind: type[T], base: Mapping[str, Any], values: Mapping[str, Any], overrides: Sequence[str]
) -> T:
    """Make a dataclass of values and overrides; raises FieldError and YAMLError."""
    texts = {key for key, entry in all_fields(kind) if entry.type is str}  # type: ignore[arg-type]
    return make_typed(kind, merge(base, merge(values, parse_overrides(overrides, texts))))


def load_all_points() -> list[PublishedPoints]:
    """Load all shipped files of convergence points; print a line for each that cannot be loaded."""
    found, refusals = load_readable(paths.yaml_names(paths.recipes_dir() / "points"), load_points)
    for refusal in refusals:
        print(f"lsgd: skipped: {refusal}", file=sys.stderr)
    return list(found.values())


def load_readable(names: Iterable[str], load: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Load an object for each name; return the objects by name and the messages of all refusals."""
    found, refusals = {}, []
    for name in names:
        try:
            found[name] = load(name)
        except UsageError as refusal:
            refusals.append(str(refusal))
    return found, refusals


def study_names() -> list[str]:
    """Return the names of all shipped studies of several recipes and seeds."""
    return paths.yaml_names(paths.recipes_dir() / "study")


def search_names() -> list[str]:
    """Return the names of all shipped hyper-parameter searches."""
    return paths.yaml_names(paths.recipes_dir() / "search")


def definition_list(
    group: str, part: str, load: Callable[[str], Definition], describe: Callable[[Definition], str]
) -> str:
    """Return a list, as text, of the studies or searches that contain `part`, with their hardware.

    They are the shipped ones and those in $LSGD_RECIPES. Raises UsageError if there are none.
    """
    blocks = []
    names = [*paths.yaml_names(paths.recipes_dir() / group), *own_names(group)]
    found, refusals = load_readable(dict.fromkeys(names), load)
    for name, definition in found.items():
        file = Path(definition.file or paths.recipes_dir() / group / f"{name}.yaml")
        text = file.read_text(encoding="utf-8")
        takes = " ".join(line[2:] for line in text.splitlines() if "Hardware: " in line)
        blocks.append(f"{group}={name}\n    {describe(definition)}. {takes}")
    return matching(blocks, part, group, refusals)
