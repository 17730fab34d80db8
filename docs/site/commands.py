"""The help texts of all commands, as the commands print them."""

import io
import os
import re
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from unittest.mock import patch

from lsgd.__main__ import COMMANDS

PARTS = re.compile(r"^(?:WHAT:| +DATASET|launchers:)$", re.M)
"""The line in the help of a command below which its parts are listed."""
PART = re.compile(r"^ {2,4}([a-z][\w-]*)(?:  |$)", re.M)


def helps() -> str:
    """Return a heading and the help of every command and of each of its subcommands."""
    with patch.dict(os.environ, {"COLUMNS": "88", "NO_COLOR": "1"}):
        return "\n\n".join(_command(name) for group in COMMANDS.values() for name in group)


def _command(name: str) -> str:
    text = _help(name)
    parts = ["strategy"] if name == "plan" else _parts(text)
    shown = [_shown(f"## lsgd {name}", text)]
    shown += [_shown(f"### lsgd {name} {part}", _help(name, part)) for part in parts]
    return "\n\n".join(shown)


def _parts(text: str) -> list[str]:
    """Return the names listed in a help text, such as those of the datasets."""
    if (start := PARTS.search(text)) is None:
        return []
    listed, *_ = re.split(r"\n\n|\npython", text[start.end() :], maxsplit=1)
    return PART.findall(listed)


def _help(*words: str) -> str:
    text = _printed(*words, "--help")
    return f"{text}\n{_printed(*words, '--explain')}" if "--explain" in text else text


def _printed(name: str, *arguments: str) -> str:
    """Return what a command prints.

    It runs in this process; in one of its own, each command would import torch again.
    """
    package = find_spec(f"lsgd.{name}")
    assert package
    module = f"lsgd.{name}.__main__" if package.submodule_search_locations else f"lsgd.{name}"
    with redirect_stdout(io.StringIO()) as output:
        try:
            code = import_module(module).main([*arguments])
        except SystemExit as end:
            code = end.code
    if code:
        raise RuntimeError(f"lsgd {name} {' '.join(arguments)} exits with code {code}")
    return output.getvalue()


def _shown(heading: str, text: str) -> str:
    return f"{heading}\n\n```text\n{text.strip()}\n```"
