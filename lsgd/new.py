"""Write a recipe of your own, a file that builds on another recipe and trains at once.

    python -m lsgd.new recipe mine --from bs256              # mine.yaml, then recipe=./mine.yaml
    python -m lsgd.new recipe mine --from ./other.yaml       # on a recipe of your own

The file has the name of the recipe and the recipe that it builds on. The fields that are changed
most often are comments, with the values that they have there. With --recipe-dir or $LSGD_RECIPES
the file is written into that folder, and recipe=mine trains it.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from lsgd import config
from lsgd.errors import UsageError, writing_to
from lsgd.job.command import Parser, RecipeFolder, run_alone
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.recipe.own_files import find_own_file, is_path, own_folder

KIND = "recipe"
OFTEN_CHANGED = (
    *("workers", "worker_batch", "epochs", "schedule.reference_lr", "schedule.reference_batch"),
    *("schedule.warmup_epochs", "schedule.milestones", "optim.momentum", "optim.weight_decay"),
)
"""The fields that a new recipe has as comments."""


def new_recipe(name: str, base: str) -> Path:
    """Write the file of a recipe that builds on another one; return its path.

    Raises UsageError for a name that is taken or no file's, and a base that cannot be composed.
    """
    if not re.fullmatch(r"\w[\w+-]*", name, re.ASCII):
        raise UsageError(
            f"the name {name!r} must begin with a letter or a digit and have only these, _, - and "
            "+; write for example mine"
        )
    if name in config.sorted_recipe_names():
        raise UsageError(f"{name} is the name of a shipped recipe; write another name")
    recipe = config.load_base(base)
    folder = own_folder() or Path()
    path, own = folder / f"{name}.yaml", find_own_file(base)
    if own and is_path(base):
        base = os.path.relpath(own.resolve(), folder.resolve())
    text = _text(name, base, recipe)
    with writing_to(path, "change to a folder of your own"):
        try:
            with path.open("x", encoding="utf-8") as file, _removing_unfinished(path):
                file.write(text)
                file.flush()
        except FileExistsError:
            raise UsageError(f"{path} exists already; write another name, or remove it") from None
    return path


@contextmanager
def _removing_unfinished(path: Path) -> Iterator[None]:
    """Remove a new file if writing it fails, so that the same command can be rerun."""
    try:
        yield
    except OSError:
        path.unlink()
        raise


def _text(name: str, base: str, recipe: Recipe) -> str:
    """Return the text of a new recipe's file."""
    lines = [
        f"# {name}: what this run claims, in one line; --recipes lists it.",
        f"# A key below replaces the one of {base}; --fields lists all keys with their meaning.",
        "defaults:",
        f"  - {_quoted(base)}",
        f"name: {_quoted(name)}",
    ]
    group = ""
    for key in OFTEN_CHANGED:
        above, _, field = key.rpartition(".")
        if above and above != group:
            lines.append(f"# {above}:")
        group = above
        value = getattr(getattr(recipe, above) if above else recipe, field)
        lines.append(f"# {'  ' if above else ''}{field}: {value}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Quote a name or path for YAML if it would read it as anything but this text."""
    is_plain = re.fullmatch(r"[A-Za-z_./][\w./+-]*", text) and yaml.safe_load(text) == text
    return text if is_plain else "'" + text.replace("'", "''") + "'"


def _write(options: argparse.Namespace) -> None:
    """Write the recipe of a command line, and print how to train it."""
    if options.kind != KIND:
        raise UsageError(
            f"lsgd new writes a recipe, not {options.kind}; write lsgd new recipe NAME --from "
            "RECIPE"
        )
    path = new_recipe(options.name, options.base)
    chosen = options.name if own_folder() else f"./{path}"
    print(f"{path}: train it by {format_override('lsgd train recipe', chosen)}")


def main(argv: Sequence[str]) -> int:
    """Run the command line `python -m lsgd.new` and return its exit code."""
    usage = "python -m lsgd.new recipe NAME --from RECIPE"
    parser = Parser("lsgd.new", __doc__ or "", usage=usage)
    parser.add_argument("kind", metavar="recipe", help="what to write")
    parser.add_argument("name", metavar="NAME", help="the name of your recipe and of its file")
    parser.add_argument(
        "--from", dest="base", metavar="RECIPE", required=True,
        help="the recipe to build on: a name of `lsgd train --recipes`, or a path",
    )  # fmt: skip
    parser.add_argument(
        "--recipe-dir", action=RecipeFolder, metavar="DIR", help="the folder of your own recipes"
    )

    return run_alone(lambda: _write(parser.parse_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
