"""The help of every command, as the command itself prints it."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from lsgd.__main__ import COMMANDS

PARTS = re.compile(r"^(?:WHAT:| +DATASET|usage: python -m lsgd.launch .*)$", re.M)
"""The line in the help of a command below which its parts are listed."""
PART = re.compile(r"^ {2,4}([a-z][\w-]*)(?:  |$)", re.M)
LISTS = re.compile(r"\n(?:recipes|studies|searches):\n(?:  .*\n)+")
"""What is listed in recipes/README.md, once for all commands."""


def helps() -> str:
    """Every command and each of its parts: a heading and its help."""
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
    """The names listed in a help, such as those of the datasets."""
    if (start := PARTS.search(text)) is None:
        return []
    listed, *_ = re.split(r"\n\n|\npython", text[start.end() :], maxsplit=1)
    return PART.findall(listed)


def _help(*words: str) -> str:
    command = [sys.executable, "-m", "lsgd", *words, "--help"]
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    return LISTS.sub("\n", done.stdout)


def _shown(heading: str, text: str) -> str:
    return f"{heading}\n\n```text\n{text.strip()}\n```"
