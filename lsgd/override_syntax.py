"""Text values in the `key=value` overrides of a recipe, as the user wrote them.

Hydra's grammar turns 4711_3 into 47113, 1e3 into 1000.0 and true into True. This module reads the
fields typed as text, also for programs that need a path before the recipe is composed: a launcher,
a supervisor, a container.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.paths import local_path

PATH_FIELDS = (
    "data.root", "data.index", "data.stage", "data.skip_list", "model.start", "strategy.order",
    "run_dir",
)  # fmt: skip
"""The fields of a recipe that name a file or folder."""

ALIASES = {"dry_run": "rehearse", "compared_seeds": "holdout_seeds"}
"""Other names of fields, in overrides and in the files of searches, each with the field's name.

`rehearse` is the name in published recipes, checkpoints and fingerprints; `compared_seeds` is the
older name of a field that none of these has.
"""
ADDED = ("recipe", "search", "study")
"""The keys for which Hydra asks for a plus sign, with which lsgd takes them as well."""


def canonical(override: str) -> str:
    """Rename the key of an override to that of saved recipes, without Hydra's plus sign.

    >>> canonical("+recipe=digits"), canonical("dry_run=true"), canonical("epochs=3")
    ('recipe=digits', 'rehearse=true', 'epochs=3')
    """
    key, equals, value = override.partition("=")
    if equals and key.lstrip("+") in ADDED:
        return override.lstrip("+")
    return f"{ALIASES[key]}={value}" if equals and key in ALIASES else override


def key_and_value(override: str) -> tuple[str, str]:
    """Split a `key=value` override into key and value, without Hydra's leading + or ~."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def parse_text(key: str, value: str) -> str | None:
    r"""Parse the value of a text field's override, without Hydra's quotes; null becomes None.

    The text is the value without Hydra's quotes: a pair around all of it, or a backslash before a
    special character. A list of augmentation parts is written in one way, as it is hashed. Raises
    UsageError for an interpolation, a missing value (???) or text that is not UTF-8.

    >>> [parse_text("run_dir", value) for value in ("4711_3", "'my run'", r"a\,b")]
    ['4711_3', 'my run', 'a,b']
    >>> parse_text("data.augmentation", "[ crop, 'flip' ]")
    '[crop,flip]'
    """
    if value == "null":
        return None
    text = _unquoted(value)
    if key == "data.augmentation" and text.startswith("[") and text.endswith("]"):
        parts = re.findall(r"""[^\s,'"]+""", text[1:-1])
        text = f"[{','.join(parts)}]"
    if "${" in text or text == "???":
        raise UsageError(
            f"{key}={value} has "
            f"{'${' if '${' in text else text} in it, which refers to another value and is not "
            "resolved; write the value itself"
        )
    if re.search("[\ud800-\udfff]", text):
        raise UsageError(f"{key}={value} is not UTF-8, as a recipe is; rename the file or folder")
    return text


def parse_seeds(key: str, text: str) -> list[int]:
    """Parse the value of seeds=…: `5` is the seeds 0 to 4, `[0..4]` a range, `[0,3]` a list.

    Raises UsageError for anything else.

    >>> [parse_seeds("seeds", text) for text in ("3", "[1..3]", "[0, 7]")]
    [[0, 1, 2], [1, 2, 3], [0, 7]]
    """
    seeds: list[int] = []
    if re.fullmatch(r"\d{1,4}", text):
        seeds = list(range(int(text)))
    elif ends := re.fullmatch(r"\[(\d{1,4})\.\.(\d{1,4})\]", text):
        seeds = list(range(int(ends[1]), int(ends[2]) + 1))
    elif re.fullmatch(r"\[ *\d{1,19}( *, *\d{1,19})* *\]", text):
        seeds = [int(number) for number in re.findall(r"\d+", text)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"{key}={text} must be a number of seeds or a list of distinct seeds; write {key}=5, "
            f"{key}=[0..4] or {key}=[0,1]"
        )
    return seeds


def last_text(overrides: Sequence[str], key: str) -> str | None:
    """Return the text that the last override of a field sets; None without such an override.

    Overrides of other fields are ignored. Raises UsageError as parse_text does.
    """
    given = [each for each in overrides if key_and_value(each)[0] == key]
    if not given or given[-1].startswith("~") or "=" not in given[-1]:
        return None
    return parse_text(key, key_and_value(given[-1])[1])


def last_path(overrides: Sequence[str], key: str) -> str | None:
    """Return the path that the last override of a field sets, with ~ expanded; None without one."""
    text = last_text(overrides, key)
    return text and local_path(text)


def expand_override_home(override: str) -> str:
    """Expand ~ in an override of a path field; return any other override unchanged."""
    key, value = key_and_value(override)
    text = _unquoted(value)
    if key in PATH_FIELDS and not override.startswith("~") and (path := local_path(text)) != text:
        return f"{override.partition('=')[0]}={_as_value(path)}"
    return override


def format_override(key: str, text: object) -> str:
    """Format the override that sets a field to this text, with Hydra's quotes if needed.

    >>> format_override("run_dir", "runs/a"), format_override("run_dir", "null")
    ('run_dir=runs/a', "run_dir='null'")
    """
    return f"{key}={_as_value(str(text))}"


def shell_override(key: str, path: Path) -> str:
    """Return a `key=path` override, quoted for Hydra and for a shell.

    A name that begins with ~ stands for no home folder.

    >>> print(shell_override("data.root", Path("/data/cats")))
    data.root=/data/cats
    >>> print(shell_override("data.root", Path("my cats")))
    'data.root='"'"'my cats'"'"''
    >>> print(shell_override("data.root", Path("~cats")))
    'data.root='"'"'./~cats'"'"''
    """
    text = str(path)
    return shlex.quote(format_override(key, f"./{text}" if text.startswith("~") else text))


def quote(text: str) -> str:
    r"""Quote a text by Hydra's grammar, so that Hydra reads it unchanged.

    >>> print(quote("it's"), quote("a\\"))
    'it\'s' 'a\\'
    """
    # Hydra reads a backslash as an escape only before a quotation mark.
    doubled = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text)
    return "'" + doubled.replace("'", r"\'") + "'"


def _as_value(text: str) -> str:
    return text if re.fullmatch(r"[\w./-]+", text) and text != "null" else quote(text)


def _unquoted(value: str) -> str:
    mark = value[:1]
    if mark in ("'", '"') and re.fullmatch(rf"{mark}([^{mark}\\]|\\.)*{mark}", value, re.DOTALL):
        # The last of an odd number of backslashes escapes the quotation mark.
        return re.sub(rf"(\\*)\1\\?({mark}|\Z)", r"\1\2", value[1:-1])
    return re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", value)
