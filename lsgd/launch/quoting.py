"""Words as a user may paste them into a shell."""

import re
from collections.abc import Sequence


def shell_line(words: Sequence[str]) -> str:
    r"""The words with backslashes where a shell would read more into them, as bash's printf %q has.

    >>> print(shell_line(["--hosts", "a:8,b:8", "run_dir=my runs", "a=it's"]))
    --hosts a:8\,b:8 run_dir=my\ runs a=it\'s
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if not word:
        return "''"
    if not word.isprintable():
        return "$'" + "".join(map(_escaped, word)) + "'"
    # A tilde and a number sign mean something where a word or a part of it begins.
    return re.sub(r"[ '\"\\|&;()<>!{}*\[\]?^$`,]|^#|^~|(?<=[:=])~", r"\\\g<0>", word)


def _escaped(character: str) -> str:
    named = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}
    if character.isprintable() or character in named:
        return named.get(character, character)
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))
