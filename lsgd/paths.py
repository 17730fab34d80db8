"""Where the shipped folders lie: beside the package in a checkout, inside it in a wheel."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """The folder `conf`, `recipes` or `data/digits` of this installation.

    Raises FileNotFoundError if it is in neither place, which means a broken installation.
    """
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / folder).is_dir():
            return parent / folder
    raise FileNotFoundError(f"{folder}/ is neither in {_PACKAGE} nor beside it: reinstall lsgd")


def conf_dir() -> Path:
    """The folder with what recipes are made of."""
    return shipped("conf")


def recipes_dir() -> Path:
    """The folder with the recipes, a Hydra search-path root of its own."""
    return shipped("recipes")


def recipe_names() -> list[str]:
    """Names of all shipped recipes, in no order."""
    return [path.stem for path in (recipes_dir() / "recipe").glob("*.yaml")]


def digits_dir() -> Path:
    """The folder with the one dataset that is shipped, and its source and licence."""
    return shipped("data/digits")


def shown(path: Path) -> str:
    """The path as a message names it: from the current folder if it is in there, else whole."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def data_root(dataset: str) -> Path:
    """Where a dataset is looked for when `data.root` is not given: `$LSGD_DATA/<dataset>`.

    Without the environment variable: `data/<dataset>` in the current folder.
    """
    return Path(os.environ.get("LSGD_DATA", "data")) / dataset
