"""Shell completion of `lsgd` by argcomplete: commands, options, recipes, fields and their choices.

    eval "$(lsgd --completion bash)"      # or zsh; for fish: lsgd --completion fish | source

Nothing here imports torch, since a shell waits for each completion.
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress

import argcomplete
from argcomplete.shell_integration import shellcode

from lsgd import config, definitions
from lsgd.errors import UsageError
from lsgd.recipe.own_files import own_names

SHELLS = ("bash", "zsh", "fish")
OF_RECIPES = ("--recipes", "--fields")
OF_RUNS = ("--explain", "--launch", "--jobs", "--print", "--status")
OPTIONS: dict[str, tuple[str, ...]] = {
    "audit": ("--explain", "--updates", "--rules", "--json"),
    "autotune": OF_RECIPES,
    "check": OF_RECIPES,
    "compare": ("--explain", "--tolerance"),
    "demo": ("--explain",),
    "doctor": ("--explain", "--json", "--limit"),
    "evaluate": ("--average", "--per-class", "--confusion"),
    "export": ("--explain", "--to", "--out", "--push"),
    "new": ("--explain", "--from", "--recipe-dir"),
    "plan": (
        *("--explain", *OF_RECIPES, "--preset", "--images-per-second", "--run", "--network-gbits"),
        *("--allreduce", "--fused", "--no-fused", "--to", "--price", "--cheapest", "--out"),
    ),
    "predict": ("--explain", "--top", "--to", "--out", "--validation"),
    "report": ("--explain", "--study", "--out", "--table", "--ladder"),
    "search": (
        *(*OF_RUNS, "--master", "--storage", "--retry-failed", "--report", "--out", "--searches"),
        *("--report-only", "--images-per-second"),
    ),
    "study": (
        *(*OF_RUNS, "--quick", "--until-decided", "--max-seeds", "--report-only", "--cost"),
        *("--images-per-second", "--studies"),
    ),
    "supervise": (
        *("--explain", "--processes", "--hosts", "--min-processes", "--restarts"),
        *("--stall-timeout", "--silence", "--grace"),
    ),
    "track": ("--explain", "--to", "--follow"),
    "train": (*OF_RECIPES, "--recipe-dir", "--cfg"),
    "verify": ("--explain", "--steps", "--places", "--seed", "--tolerance", "--out"),
}
"""The options of each command besides --help.

They are declared here too, since the commands' own modules import torch.
"""


def script(shell: str) -> str:
    """Return the code that makes a shell complete `lsgd`; raises UsageError for unknown shells."""
    if shell not in SHELLS:
        raise UsageError(f"--completion {shell} is not supported; write one of {', '.join(SHELLS)}")
    code: str = shellcode(["lsgd"], shell=shell)
    return code


def complete(commands: Mapping[str, str]) -> None:
    """Print the completions of the `lsgd` command line that a shell asks about, and exit.

    `commands` has the help of each command by its name.
    """
    parser = argparse.ArgumentParser("lsgd")
    parser.add_argument("--completion", choices=SHELLS)
    parser.add_argument("--version", action="store_true")
    subparsers = parser.add_subparsers()
    for name, about in commands.items():
        subparser = subparsers.add_parser(name, help=about)
        for option in OPTIONS.get(name, ()):
            subparser.add_argument(option, nargs="?")
        arguments = subparser.add_argument("arguments", nargs="*")
        arguments.completer = lambda prefix, **_: overrides(prefix)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def overrides(prefix: str) -> list[str]:
    """Return the completions of a partly typed override of a recipe: keys, or values of its key.

    >>> overrides("optim=l"), overrides("averaging.half"), overrides("recipe=bs8k_s")
    (['optim=lamb', 'optim=lars'], ['averaging.half_life='], ['recipe=bs8k_sqrt_lr'])
    """
    key, equals, _ = prefix.partition("=")
    found = _values(key) if equals else (f"{each}=" for each in ["recipe", *config.override_keys()])
    return [each for each in found if each.startswith(prefix)]


def _values(key: str) -> Iterator[str]:
    names = {
        "recipe": config.sorted_recipe_names,
        "study": definitions.study_names,
        "search": definitions.search_names,
    }.get(key.lstrip("+"), lambda: config.choices(key))
    yield from (f"{key}={name}" for name in names())
    with suppress(UsageError):  # of a folder that does not exist
        yield from (f"{key}={name}" for name in own_names(key.lstrip("+")))
