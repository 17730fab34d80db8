"""The command line of a recipe: its overrides, its options, and the lists of what they may be."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from lsgd import config
from lsgd.definitions import load_readable
from lsgd.errors import UsageError
from lsgd.job.command import Parser, RecipeFolder, matching, option_and_value
from lsgd.recipe import Recipe, reference
from lsgd.recipe.overrides import (
    check_recipe_file,
    choices,
    config_groups,
    installed_names,
    override_keys,
    sorted_recipe_names,
)
from lsgd.recipe.own_files import find_own_file, own_names, own_recipe
from lsgd.suggestions import did_you_mean

EXAMPLES = """

examples:
  python -m {program} recipe=digits                   a recipe; --recipes lists them
  python -m {program} recipe=bs8k dry_run=true        the same run in miniature, in seconds
  python -m {program} recipe=bs8k workers=128 seed=1  other fields; --fields lists them
"""


class RecipeParser(Parser):
    """A command-line parser for the overrides of a recipe and the options that a command adds."""

    def __init__(self, *, program: str, about: str, command_keys: Sequence[str] = ()) -> None:
        """Create a recipe parser; `command_keys` are keys that the command takes from its line."""
        super().__init__(
            program,
            about if "python -m" in about else about.rstrip() + EXAMPLES.format(program=program),
            keys=lambda: ["recipe", *command_keys, *override_keys()],
            usage=f"python -m {program} recipe=NAME [key=value ...] [options]",
        )
        self.add_argument("words", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
        self.add_listing(
            "--recipes", "FILTER", "list the recipes whose line contains FILTER", recipe_list
        )
        self.add_listing(
            "--fields", "PREFIX", "list the fields and groups that begin with PREFIX", field_list
        )
        trains = program == "lsgd.train"
        self.is_tuned = trains or program == "lsgd.autotune"
        self.add_argument(
            "--recipe-dir",
            action=RecipeFolder,
            metavar="DIR",
            help="the folder of your own recipes ($LSGD_RECIPES)" if trains else argparse.SUPPRESS,
        )
        printed = "print the run's configuration and exit" if trains else argparse.SUPPRESS
        self.add_argument("--cfg", action="store_true", help=printed)

    def parse(self, argv: Sequence[str]) -> tuple[Recipe, argparse.Namespace]:
        """Parse a command line into the composed recipe and the command's own options.

        Raises UsageError for any error in it; `--help` and `--cfg` print and raise SystemExit(0).
        """
        # Options may stand between overrides.
        arguments = self.parse_intermixed_args(argv)
        recipe = config.load_recipe(arguments.words, is_tuned=self.is_tuned)
        if arguments.cfg:
            print(config.to_yaml(recipe), end="")
            raise SystemExit(0)
        return recipe, arguments

    def reject_argument(
        self, word: str, line: Sequence[str], *remedy: str, **more: Any
    ) -> NoReturn:
        """Raise UsageError for an unknown option, with the recipe override to write if any."""
        name, value = option_and_value(word, line)
        if (key := name.lstrip("-").replace("-", "_")) in ("batch_size", "recipe"):
            overrides = [each for each in line if "=" in each and not each.startswith("-")]
            config.check_before_composition([f"{key}={value}", *overrides])
        super().reject_argument(word, line, *remedy, **more)


def check_command_line(argv: Sequence[str]) -> None:
    """Check a recipe's command line for errors that show before composition; raises UsageError."""
    parser = RecipeParser(program="lsgd.train", about="")
    config.check_before_composition(parser.parse_intermixed_args(argv).words)


def parse_recipe(argv: Sequence[str], *, program: str, about: str) -> Recipe:
    """Compose the recipe of a command line that has only recipe overrides and common options.

    Raises UsageError or SystemExit(0), as RecipeParser.parse does.
    """
    recipe, _ = RecipeParser(program=program, about=about).parse(argv)
    return recipe


def recipe_list(part: str) -> str:
    """Return a list, as text, of the recipes whose names or claims contain a text.

    They are the shipped ones and those in $LSGD_RECIPES.

    Raises UsageError if there are none.
    """
    claims, refusals = load_readable(sorted_recipe_names(), _claim)
    own, own_refusals = load_readable(own_names("recipe"), _own_claim)
    lines = [f"{name:<27} {claim}" for name, claim in (claims | own).items()]
    refusals += own_refusals
    return matching(lines, part, "recipe", refusals)


def field_list(prefix: str) -> str:
    """Return a list, as text, of recipe groups and fields with this prefix, and their meanings.

    For a part of one's own, such as optim=package.module:Name, it has the options of that part.
    Raises UsageError if there are none.
    """
    if "=" in prefix:
        return reference.option_list(prefix)
    groups = [name for name in config_groups() if name.startswith(prefix.partition(".")[0])]
    known = {name: "|".join([*choices(name), *installed_names(name)]) for name in groups}
    headlines = [f"{name}={known[name]}   [conf/{name}/]" for name in groups]
    text = reference.field_list(prefix)
    if not text and not headlines:
        raise UsageError(
            f"no field begins with {prefix!r}; {did_you_mean(prefix, override_keys())}"
        )
    return "\n".join([*headlines, text]).strip()


def _claim(name: str) -> str:
    """Return the first comment of a recipe's file, which states its claim; raises UsageError."""
    comments = [line[2:] for line in check_recipe_file(name) if line.startswith("# ")]
    return next((line for line in comments if "@package" not in line), "(no description)")


def _own_claim(name: str) -> str:
    """Return the claim of a recipe in $LSGD_RECIPES, with its file; raises UsageError."""
    own = own_recipe([f"recipe={name}"])
    if own is None:
        path = find_own_file(name)
        raise UsageError(
            f"{path} has the name of a shipped recipe, which recipe={name} means; write "
            f"recipe={path} for it, or rename it"
        )
    file = own.files[0]
    comments = [line[2:] for line in file.text.splitlines() if line.startswith("# ")]
    claim = next((line for line in comments if "@package" not in line), "(no description)")
    return f"{claim} [{file.shown}]"
