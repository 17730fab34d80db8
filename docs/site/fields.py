"""Tables of the fields of a recipe: default, limits, kind and meaning, from their declarations."""

import inspect
from dataclasses import Field
from typing import Any

from lsgd.recipe.reference import (
    default_text,
    groups,
    is_execution,
    limit_text,
    meanings,
    own_fields,
    relevance_texts,
)


def tables() -> str:
    """Return one table in Markdown for the recipe itself and one for each of its groups."""
    return "\n\n".join(_section(heading, kind, prefix) for heading, kind, prefix in groups())


def _section(heading: str, kind: type, prefix: str) -> str:
    rows = [_row(entry, prefix, meanings(kind)) for entry in own_fields(kind)]
    about = inspect.getdoc(kind) or ""
    head = "| field | meaning | default | limits | kind |\n|---|---|---|---|---|"
    return "\n".join([f"## {heading}", "", about, "", head, *rows])


def _row(entry: Field[Any], prefix: str, meaning: dict[str, str]) -> str:
    key = f"{prefix}{entry.name}"
    kind = "execution" if is_execution(entry) else "trajectory"
    value = default_text(entry)
    cells = [
        f'<span id="{key}"></span>`{key}`',
        meaning[entry.name],
        f"`{value}`" if value else "required",
        limit_text(entry),
        "; ".join([kind, *relevance_texts(entry)]),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
