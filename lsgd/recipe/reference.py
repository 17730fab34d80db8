"""The reference of recipe fields: meaning, default and limits, from their declarations."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from lsgd.errors import UsageError
from lsgd.own_parts import FORM, KINDS, import_part, installed_parts, is_import_path
from lsgd.recipe import Recipe
from lsgd.recipe.fields import as_override, default, group_of, limits, relevances
from lsgd.typed import describe

WIDTH = 100
"""The columns of a list on a terminal."""


def groups() -> Iterator[tuple[str, type, str]]:
    """Yield the groups of recipe fields as (name, dataclass, prefix of keys), the recipe first."""
    yield "the run", Recipe, ""
    for entry in fields(Recipe):
        if group := group_of(entry.type):
            yield entry.name, group, f"{entry.name}."


def own_fields(kind: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are values and not groups of fields."""
    return [entry for entry in fields(kind) if not group_of(entry.type)]


def meanings(kind: type) -> dict[str, str]:
    """Return the text that documents each field of a dataclass as one line, by the field's name."""
    found = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(before.target, ast.Name)
                assert isinstance(after.value, ast.Constant)
                text = inspect.cleandoc(str(after.value.value))
                found[before.target.id] = text.replace("\n", " ")
    return found


def default_text(entry: Field[Any]) -> str:
    """Return the default of a field as the command line writes it, an empty string without one."""
    value = default(entry)
    if value is MISSING:
        return ""
    return '""' if value == "" else as_override(value)


def limit_text(entry: Field[Any]) -> str:
    """Describe the limits on a recipe field's value in one phrase."""
    return " and ".join(limit.description for limit in limits(entry) if limit.description)


def relevance_texts(entry: Field[Any]) -> list[str]:
    """Describe the choices of other fields with which this field is used, one text for each."""
    return [rule.description for rule in relevances(entry)]


def is_execution(entry: Field[Any]) -> bool:
    """Return whether a recipe field changes how and where a run trains, and no result."""
    return "execution" in entry.metadata


def field_list(prefix: str) -> str:
    """List the recipe fields whose keys begin with a prefix, with defaults and meanings, as text.

    The text has at most WIDTH columns. It is empty if no key begins so.
    """
    blocks = []
    for _, kind, group in groups():
        meaning = meanings(kind)
        for entry in own_fields(kind):
            if (key := group + entry.name).startswith(prefix):
                blocks += [_headline(key, entry), _indented(meaning[entry.name])]
    return "\n".join(blocks)


def option_list(choice: str) -> str:
    """List the options of a part of one's own, such as optim=package.module:Name, as text.

    Raises UsageError if the choice is none, or the part cannot be imported.
    """
    key, _, name = choice.partition("=")
    kind = next((each for each in KINDS if key in (each.choice, each.key)), None)
    path = name if kind is None or is_import_path(name) else installed_parts(kind).get(name)
    if kind is None or path is None:
        raise UsageError(
            f"{choice} is not a part of your own, whose options are listed; write for example "
            f"optim={FORM}, or a prefix such as {key}"
        )
    part = import_part(kind, path)
    meaning = (inspect.getdoc(part.make) or "").partition("\n")[0]
    lines = [part.override, *([_indented(meaning)] if meaning else [])]
    for option, entry in part.options.items():
        default = "" if entry.is_required else f"={_option_text(entry.default)}"
        given = " (required)" if entry.is_required else ""
        lines.append(f"{kind.options_key(option)}{default}{given}   [{describe(entry.type)}]")
    return "\n".join(lines)


def _option_text(value: Any) -> str:
    return as_override(list(value) if isinstance(value, tuple) else value)


def _headline(key: str, entry: Field[Any]) -> str:
    value = default_text(entry)
    facts = [limit_text(entry), *relevance_texts(entry)] + ["execution"] * is_execution(entry)
    facts = [fact for fact in facts if fact]
    head = f"{key}={value}" if value else f"{key} (required)"
    line = f"{head}   [{'; '.join(facts)}]" if facts else head
    return textwrap.fill(line, WIDTH, subsequent_indent="        ", break_on_hyphens=False)


def _indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
