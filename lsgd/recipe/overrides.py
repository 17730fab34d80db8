"""The overrides of a recipe: its keys, the choices of its groups, and refusals of all others.

lsgd.config composes what passes these checks.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, NoReturn, Union, get_args, get_origin

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.override_syntax import key_and_value
from lsgd.own_parts import KINDS, first_line, installed_parts, is_import_path
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields, group_of, is_within
from lsgd.recipe.own_files import (
    HYDRA_HEADER,
    LR_KEYS,
    MAX_DIGITS,
    MAX_FILE_BYTES,
    is_path,
    lr_message,
    missing_file_message,
    own_recipe,
)
from lsgd.recipe.settings import LIBRARIES
from lsgd.suggestions import did_you_mean, exact_equivalent, misspelled, suggest_equivalent
from lsgd.untrusted_files import read_bounded

NO_RECIPE = "no recipe is given; write for example recipe=digits, or --recipes to see them all"
RECIPE_OPTIONS = ("--help", "--recipes", "--fields", "--cfg")
"""The options that every command line of a recipe has."""

PART_BASES = {"model": "library", "optim": "own", "schedule": "own", "inputs": "auto"}
"""The choice of each group on which a part of one's own is based."""


def sorted_recipe_names() -> list[str]:
    """Return the names of all shipped recipes, sorted by minibatch size: bs512 before bs1k."""

    def with_size(name: str) -> str:
        return re.sub(r"bs(\d+)(k?)", lambda m: f"{int(m[1]) * (1024 if m[2] else 1):06}", name)

    return sorted(paths.recipe_names(), key=with_size)


def override_keys() -> list[str]:
    """Return all keys that an override may set: the fields of a recipe, and its config groups."""
    return [*_keys(), *config_groups()]


def _keys() -> list[str]:
    return [key for key, entry in all_fields(Recipe) if not group_of(entry.type)]


@cache
def field_keys() -> frozenset[str]:
    """Return the keys of all recipe fields and of their groups."""
    return frozenset(key for key, _ in all_fields(Recipe))


@cache
def text_keys() -> frozenset[str]:
    """Return the keys of all recipe fields that hold text: of type str or str | None."""
    return frozenset(key for key, entry in all_fields(Recipe) if entry.type in (str, str | None))


def config_groups() -> list[str]:
    """Return the names of all config groups: the folders of conf/."""
    folders = (path for path in paths.conf_dir().iterdir() if path.is_dir())
    return sorted(path.name for path in folders if path.name.isidentifier())


def choices(group: str) -> list[str]:
    """Return the choices of a config group, such as the optimizers of optim; none for others."""
    if group not in config_groups():
        return []
    found = paths.yaml_names(paths.conf_dir() / group)
    if (base := PART_BASES.get(group)) in ("library", "own"):
        found.remove(base)
    if group == "model":
        found += [f"{library}/NAME" for library in LIBRARIES]
    return found


def installed_names(group: str) -> list[str]:
    """Return the names of the parts of one's own that installed packages declare for a group."""
    return sorted(name for kind in KINDS if kind.choice == group for name in installed_parts(kind))


def base_of_part(group: str, value: str) -> tuple[str, str] | None:
    """Return the choice below a network of a library or a part of one's own, and its name's key.

    The name is set in the fields of that choice. None for a choice of lsgd's own.
    """
    if group == "model" and is_within(value, LIBRARIES):
        return "library", "model.name"
    kind = next((each for each in KINDS if each.choice == group), None)
    is_shipped = group not in PART_BASES or value in choices(group) or value.startswith("{")
    if kind is None or is_shipped or not (is_import_path(value) or value in installed_parts(kind)):
        return None
    return PART_BASES[group], kind.key


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise UsageError for recipe overrides that Hydra would misread or explain badly."""
    groups, recipes = config_groups(), sorted_recipe_names()
    for word in overrides:
        if word.startswith("~"):
            _check_deletion(word, groups)
    chosen = [word for word in overrides if key_and_value(word)[0] == "recipe"]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are {len(chosen)} recipes; write one")
    for word in overrides:
        key, value = key_and_value(word)
        if not key or ("=" not in word and not word.startswith("~")):
            refuse_override(word)
        if key in ("study", "search") and "=" in word:
            raise UsageError(f"{key}={value} is a {key}; write lsgd {key} {key}={value or 'NAME'}")
        refuse_long_number(key, value)
        if key in LR_KEYS:
            raise UsageError(lr_message(key))
        if key == "recipe" and own_recipe([word]) is None:
            _check_choice(word, value, recipes)
            if value in recipes:  # and not several, which are refused later
                check_recipe_file(value)
        if key in groups and "=" in word and base_of_part(key, value) is None:
            _check_choice(word, value, choices(key))
        if re.match(r"hydra\b", key):
            raise UsageError(
                f"'{word}' has no effect, since Hydra only composes the recipe; write "
                "run_dir=PATH for the folder of the run"
            )


def _check_deletion(override: str, groups: Collection[str]) -> None:
    """Raise UsageError for an override such as ~KEY of what cannot be deleted, or with a value."""
    key, _ = key_and_value(override)
    if key == "recipe":
        raise UsageError(f"{override} leaves no recipe; write recipe=NAME")
    if key in groups:
        raise UsageError(missing_message([key]))
    if "=" in override:
        raise UsageError(f"'{override}' has a value, and ~ takes a key alone; write ~{key}")


def refuse_deletion(key: str) -> NoReturn:
    """Raise UsageError for the deletion of a key that is not set, or that no recipe has."""
    above = dict(all_fields(Recipe)).get(key.rpartition(".")[0])
    if above and get_origin(above.type) is dict:
        raise UsageError(f"{key} is not set; leave ~{key} out") from None
    refuse_key(key, key)


def refuse_long_number(key: str, value: str, digits: int = MAX_DIGITS) -> None:
    """Raise UsageError for a number of `digits` digits or more, by default more than Python reads.

    A text may have any.
    """
    if key not in text_keys() and (number := re.search(rf"\d{{{digits},}}", value)):
        raise UsageError(
            f"{key} has {len(number[0])} digits, and a number has at most 308; write a smaller one"
        )


def _check_choice(override: str, value: str, known: Sequence[str]) -> None:
    """Raise UsageError if an override chooses a file that its config group does not have."""
    if not value:
        raise UsageError(
            NO_RECIPE
            if key_and_value(override)[0] == "recipe"
            else f"'{override}' has no value; write {override}NAME"
        )
    mapping, several = value.startswith("{"), "," in value and not value.startswith("[")
    if value.strip("'\"") not in known and not mapping and not several:
        if key_and_value(override)[0] == "recipe":
            raise UsageError(missing_file_message(override, value, known))
        group = key_and_value(override)[0]
        known = [*known, *installed_names(group)]
        module, _, name = value.rpartition(".")
        is_file = name in ("yaml", "yml")
        if group in PART_BASES and not is_file and is_import_path(path := f"{module}:{name}"):
            raise UsageError(
                f"{override} does not exist; write {group}={path} for {name} of the module "
                f"{module}, or one of {', '.join(known)}"
            )
        raise UsageError(f"{override} does not exist; {did_you_mean(value, known)}")


def check_recipe_file(name: str) -> list[str]:
    """Read the lines of a shipped recipe's file; raises UsageError if Hydra would misread it."""
    file = paths.recipes_dir() / "recipe" / f"{name}.yaml"
    shown = paths.display_path(file)
    try:
        lines = read_bounded(file, MAX_FILE_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown} cannot be read ({first_line(error)}); fix it") from None
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("\ufeff"):
        raise UsageError(
            f"{shown} begins with a byte order mark, after which Hydra cannot read the first "
            "line; save it as UTF-8 without one"
        )
    if not HYDRA_HEADER.fullmatch(first):
        raise UsageError(
            f"{shown} does not begin with `# @package _global_`, so its fields would not be those "
            "of a recipe; write that as its first line"
        )
    return lines


def refuse_override(override: str) -> NoReturn:
    """Raise UsageError for an override that cannot be parsed."""
    key, value = key_and_value(override)
    if "=" in override and re.fullmatch(r"[\w./-]+", key):
        entry = dict(all_fields(Recipe)).get(key)
        kind = _without_none(entry.type) if entry else None
        is_closed = all(value.count(a) == value.count(b) for a, b in ("()", "[]", "{}"))
        if is_closed and kind in _TYPE_DESCRIPTIONS and "str" not in str(kind):
            refuse_type(key, value)
        if kind == list[str] and not value.startswith("["):
            raise UsageError(
                f"{key}={value} is not a list of texts; write '{key}=[\"{value}\"]'"
            ) from None
        raise UsageError(
            f"the value in '{override}' cannot be read; close its brackets, or quote it twice: "
            f"'{key}=\"{value}\"'"
        ) from None
    if key == "recipe":
        how = "write recipe=NAME"
    elif is_path(override) or override in sorted_recipe_names():
        how = f"write recipe={override}"
    else:
        how = suggest_equivalent(override, options=RECIPE_OPTIONS)
    how = how or "write for example epochs=30"
    raise UsageError(f"'{override}' is not of the form key=value; {how}") from None


def refuse_key(key: str, given: str) -> NoReturn:
    """Raise UsageError for a key that no recipe has; the hint is to what is like `given`."""
    if key in config_groups():
        raise UsageError(
            f"{key} is a choice without keys of its own; write {key}=NAME for one of `--fields "
            f"{key}`"
        ) from None
    known = [*_keys(), *config_groups(), "recipe"]
    equivalent = "" if misspelled(given, known) else exact_equivalent(given, keys=known)
    hint = equivalent or did_you_mean(given, known)
    raise UsageError(f"there is no key '{key}'; {hint}") from None


_TYPE_DESCRIPTIONS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "=30"),
    int | str: ("a whole number or {word}", "=8"),
    int | float | str: ("a whole number of epochs, a fraction of one, or steps", "=0.5"),
    float: ("a number", "=0.5"),
    bool: ("true or false", "=true"),
    bool | str: ("true, false or auto", "=true"),
    list[int]: ("a list of whole numbers", "=[1,2,3]"),
    list[float]: ("a list of numbers", "=[1,2,3]"),
    list[str]: ("a list of texts", "=[a,b]"),
    list[list[int]]: ("a list of lists of whole numbers", "=[[6,8,64]]"),
    list[list[float]]: ("a list of lists of numbers", "=[[0,1],[5,32]]"),
    dict[str, str]: ("a group of keys", ".RULE=REASON"),
    dict[str, float]: ("a metric and its target", "={top1_error:24.1}"),
    dict[str, Any]: ("a group of keys", ".KEY=VALUE"),
    dict[int, float]: ("numbers by epoch", "={1:50,2:40}"),
}
"""The description of each field type in messages, and an example value."""


def refuse_type(key: str, value: Any) -> NoReturn:
    """Raise UsageError for a value that is not of its field's type."""
    if key.startswith("deviations."):
        raise UsageError(f"{key}={value} is not a reason; write it as a text, +{key}='…'") from None
    refuse_long_number(key, str(value), 309)
    field, element, _ = key.partition("[")
    entries = dict(all_fields(Recipe))
    field = field if field in entries else field.rpartition(".")[0]  # a key of a dict field
    kind: Any = _without_none(entries[field].type)
    if group := group_of(kind):
        what, example = "a group of keys", f".{fields(group)[0].name}=VALUE"
    else:
        what, example = _TYPE_DESCRIPTIONS.get(kind, ("a text", "=TEXT"))
        if "{word}" in what:  # that of its limit, such as 1 or more, or auto
            what = what.format(word=entries[field].metadata["at_least_or"].description.split()[-1])
    shown = json.dumps(value) if value is None or isinstance(value, bool) else value
    wrong = f"{field} has {shown} in it and" if element else f"{field}={shown}"
    raise UsageError(f"{wrong} is not {what}; write for example {field}{example}") from None


def _without_none(kind: Any) -> Any:
    """Return a field's type without None, such as int | str for int | str | None."""
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return Union[tuple(kinds)] if NoneType in get_args(kind) else kind  # noqa: UP007


def missing_message(keys: Sequence[str]) -> str:
    """Return the error message for required fields and groups without a value."""
    if "name" in keys:
        return NO_RECIPE
    # If its name is missing, a group has not been chosen, so that its other fields are missing too.
    keys = [key.removesuffix(".name") for key in keys if key.endswith(".name")] or keys
    return f"{', '.join(keys)} has no value; write {keys[0]}=…"
