"""The fields of a recipe as tables: default, limits, kind and meaning, from their declarations."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from lsgd.recipe import Recipe
from lsgd.recipe.fields import default, group_of, limits


def tables() -> str:
    """A table for the recipe itself, and one for each of its groups."""
    return "\n\n".join(_section(heading, kind, prefix) for heading, kind, prefix in _groups())


def _groups() -> Iterator[tuple[str, type, str]]:
    yield "the run", Recipe, ""
    for entry in fields(Recipe):
        if group := group_of(entry.type):
            yield entry.name, group, f"{entry.name}."


def _section(heading: str, kind: type, prefix: str) -> str:
    rows = [
        _row(entry, prefix, _meanings(kind)) for entry in fields(kind) if not group_of(entry.type)
    ]
    about = inspect.getdoc(kind) or ""
    head = "| field | meaning | default | limits | of |\n|---|---|---|---|---|"
    return "\n".join([f"## {heading}", "", about, "", head, *rows])


def _row(entry: Field[Any], prefix: str, meanings: dict[str, str]) -> str:
    key = f"{prefix}{entry.name}"
    kind = "speed and place" if "execution" in entry.metadata else "trajectory"
    workloads = ", ".join(entry.metadata.get("workloads", ()))
    cells = [
        f'<span id="{key}"></span>`{key}`',
        meanings[entry.name],
        _default(entry),
        _limits(entry),
        f"{kind}; {workloads}" if workloads else kind,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(entry: Field[Any]) -> str:
    value = default(entry)
    return "to be given" if value is MISSING else f"`{_written(value)}`"


def _written(value: Any) -> str:
    """A value as it is written on the command line."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case "":
            return '""'
        case _:
            return str(value)


def _limits(entry: Field[Any]) -> str:
    return " and ".join(limit.words for limit in limits(entry))


def _meanings(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, by its name."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(before.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[before.target.id] = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
    return found
