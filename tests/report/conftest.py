"""Recipes of run folders, each read once: a report is of the same few recipes again and again."""

from dataclasses import replace
from pathlib import Path

import pytest

from lsgd import config
from lsgd.recipe import Recipe

READ: dict[bytes, Recipe] = {}
"""The recipes read so far, by the content of their config.yaml."""


@pytest.fixture(autouse=True)
def recipes_read_once(composed_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a config.yaml again only if its content is new, or if it is no ordinary file."""
    read = config.read_recipe

    def read_once(path: Path) -> Recipe:
        if path.is_symlink() or not path.is_file():
            return read(path)
        content = path.read_bytes()
        if content not in READ:
            READ[content] = read(path)
        return replace(READ[content])

    monkeypatch.setattr(config, "read_recipe", read_once)
