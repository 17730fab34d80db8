"""Quoting of arbitrary values for launchers, so that they remain data: no extra line or option."""

import re
from collections.abc import Sequence

import yaml

from lsgd.errors import UsageError

WIDTH = 2**31
"""The line length, in characters, below which PyYAML must not wrap."""


def shell_line(arguments: Sequence[str]) -> str:
    r"""Quote arguments as one line for a shell with backslashes, as bash's printf %q does.

    >>> print(shell_line(["--hosts", "a:8,b:8", "run_dir=my runs", "a=it's"]))
    --hosts a:8\,b:8 run_dir=my\ runs a=it\'s
    """
    return " ".join(map(_quoted, arguments))


def _quoted(word: str) -> str:
    if not word:
        return "''"
    if not word.isprintable():
        return "$'" + "".join(map(_escaped, word)) + "'"
    # A tilde and a number sign are special at the beginning of a word or of a part of it.
    return re.sub(r"[ '\"\\|&;()<>!{}*\[\]?^$`,]|^#|^~|(?<=[:=])~", r"\\\g<0>", word)


def _escaped(character: str) -> str:
    named = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}
    if character.isprintable() or character in named:
        return named.get(character, character)
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))


def sbatch_line(option: str) -> str:
    r"""Format one option of sbatch, `--name=value`, as a quoted #SBATCH line of a batch script.

    sbatch reads a backslash as a shell does between double quotes, but also between single ones,
    and takes an unquoted # as the start of a comment. Raises UsageError for control characters: the
    end of a line ends the option, whatever quotes are open.

    >>> print(sbatch_line('--output=my "runs"/a.log'))
    #SBATCH --output="my \"runs\"/a.log"
    """
    name, equals, value = option.partition("=")
    if not value.isprintable():
        raise UsageError(
            f"{name} is {value!r}, but a batch script must not contain control characters; write "
            "it without them"
        )
    if re.search(r"[\s'\"\\#]", value):
        value = '"' + re.sub(r'["\\]', r"\\\g<0>", value) + '"'
    return f"#SBATCH {name}{equals}{value}"


def yaml_text(value: str) -> str:
    r"""Format a text as a YAML string on one line, in quotes unless no reader needs them.

    >>> print(yaml_text("registry.example/lsgd:1"), yaml_text("no"), yaml_text("a\nb: c"))
    registry.example/lsgd:1 "no" "a\nb: c"
    """
    # YAML readers differ in which plain words are no strings, such as y, 1e3 and 0o7.
    if re.fullmatch(r"[A-Za-z][\w./:-]*\w", value, re.ASCII):
        plain, _, _ = yaml.safe_dump(value, width=WIDTH).partition("\n")
        if plain == value:
            return value
    return _double_quoted(value)


def kubernetes_command(arguments: Sequence[str]) -> str:
    """Format a container's command as a YAML list, with every dollar sign doubled.

    Kubernetes takes $(NAME) for a variable, and two dollar signs for one.

    >>> print(kubernetes_command(["echo", "a=$(B)"]))
    ["echo", "a=$$(B)"]
    """
    return f"[{', '.join(_double_quoted(word.replace('$', '$$')) for word in arguments)}]"


def _double_quoted(text: str) -> str:
    dumped: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=WIDTH)
    return dumped.rstrip("\n")
