"""The help texts of all commands, as the commands print them."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from lsgd.__main__ import COMMANDS

PARTS = re.compile(r"^(?:WHAT:| +DATASET|launchers:)$", re.M)
"""The line in the help of a command below which its parts are listed."""
PART = re.compile(r"^ {2,4}([a-z][\w-]*)(?:  |$)", re.M)


def helps() -> str:
    """Return a heading and the help of every command and of each of its subcommands."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(_command, [name for group in COMMANDS.values() for name in group]))
    return "\n\n".join(texts)


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


def _printed(*words: str) -> str:
    command = [sys.executable, "-m", "lsgd", *words]
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1"}
    return subprocess.run(
        command, env=environment, text=True, capture_output=True, check=True
    ).stdout


def _shown(heading: str, text: str) -> str:
    return f"{heading}\n\n```text\n{text.strip()}\n```"
