"""A check of names, docstrings and messages by the rules of this project; `make lint` runs it.

    python tests/suite/language.py

A class is a noun phrase, no function word and no bare participle. The first line of a docstring is
understandable alone, and some idioms say less than a noun or a number. Neither these nor the words
that only this project used are in a message of lsgd. Messages and help have no plus sign of Hydra.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("lsgd", "benchmarks", "docs", "tests/helpers")
NO_NOUNS = re.compile(
    "_?(About|After|All|As|Before|Beside|Give|Here|It|Kind|Of|Some|Take|Then|There|Thing|Until|Way|"
    "What|When|Where|Which|While|Who|Why|With|Word|Begun|Drawn|Evaluated|Found|Given|Hidden|Kept|"
    "Left|Living|Lost|Made|Measured|Opened|Pairing|Placed|Returned|Sent|Shown|Taken|Told|Watched)"
)
"""Function words, vague nouns and bare participles."""
FIRST_LINES = re.compile("(What|Those|How|As|All of|It|They) ")
"""Beginnings of a first line that names no object."""
IDIOMS = re.compile(
    r"\b(com(e|es|ing) to [a-z0-9 ]*\b(number|value|result)|so many|alike|by itself|told to leave|"
    r"comes? back|what (it|they|some|all) comes? to)\b"
)
MESSAGES = re.compile(
    r"\b(the same (words|command goes on)|go(es)? on|says nothing|mend(ed|s)?|for want of|told|"
    r"(?<!there )(is|are) no (?!longer\b|more\b|such\b)[a-z]+|left no words|comes? back|is back)\b"
)
"""Idioms that a message has a standard term for: rerun, resume, has no effect, fix, is not a …"""

PLUS = re.compile(r'(?<!canonical\(")\+(recipe|study|search)=')
"""An override as Hydra asks for it, whose plus sign users need not write."""


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) for each name and docstring of a module that breaks a rule.

    >>> [*faults("class Told: pass")]
    [(1, 'the class Told is no noun phrase')]
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and NO_NOUNS.fullmatch(node.name):
            yield node.lineno, f"the class {node.name} is no noun phrase"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                if begin := FIRST_LINES.match(text):
                    yield node.lineno, f"a docstring begins with {begin[1]!r} and names no object"
                if idiom := IDIOMS.search(text):
                    yield node.lineno, f"a docstring has the idiom {idiom[0]!r}"


def message_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) for each text of a module, other than docstrings, with an idiom.

    >>> [*message_faults("raise UsageError('a is no folder')")]
    [(1, "a message has the idiom 'is no folder'")]
    """
    docstrings = set()
    for node in ast.walk(ast.parse(source)):  # parents before their children
        if isinstance(node, ast.Expr):
            docstrings.add(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            idiom = MESSAGES.search(node.value) or IDIOMS.search(node.value)
            if idiom and node not in docstrings:
                yield node.lineno, f"a message has the idiom {idiom[0]!r}"


def plus_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) for each text of a module, or docstring, with Hydra's plus sign.

    >>> [*plus_faults("raise UsageError('write +recipe=digits')")]
    [(1, 'a text has +recipe=, which is written recipe=')]
    """
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (found := PLUS.search(text)):
            yield node.lineno, f"a text has {found[0]}, which is written {found[1]}="


def main() -> int:
    """Print each fault with its file and line; return 1 if there is one."""
    code = 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text("utf-8")
            of_lsgd = (message_faults, plus_faults) if folder == "lsgd" else ()
            messages = [fault for check in of_lsgd for fault in check(source)]
            for line, sentence in (*faults(source), *messages):
                print(f"{path.relative_to(ROOT)}:{line}: {sentence}")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
