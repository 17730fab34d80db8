"""The README of a mutation run: the score of each package, and the mutants not killed."""

import os
import platform
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

KINDS = ("killed", "hung", "survived", "unreached")
WHY = """\
## Why mutmut

Its operators make about one change of each kind at a place, leave annotations and docstrings alone,
and can be used without its runner. That runner was tried too: it takes this layout, but chooses
tests by function, skips functions with decorators, and puts all variants of a function beside each
other, so that every import of lsgd would read some 60,000 of them. cosmic-ray turns each binary
operator into all eleven others, in annotations too (71 % of what it makes of `lsgd/rules`, most of
which fails at import and says nothing), and runs one command for all mutants.

Of mutmut its operators are used and how it applies one. Strings with a blank, which are for
people, and lines with the words of an option or of a print are left alone. Functions with
decorators are not.
"""


def report(found: list[dict[str, Any]], drawn: int, words: dict[str, Any]) -> str:
    """Return the README of these results, with the number of mutants drawn."""
    packages = sorted({each["package"] for each in found})
    rows = {p: Counter(each["outcome"] for each in found if each["package"] == p) for p in packages}
    rows["all"] = sum(rows.values(), Counter())
    table = "".join(
        f"| {name} | {' | '.join(str(count[kind]) for kind in KINDS)} | {score(count)} |\n"
        for name, count in rows.items()
    )
    alive = sorted(
        (each for each in found if each["outcome"] in ("survived", "unreached")),
        key=lambda each: (each["outcome"], each["file"], each["line"]),
    )
    asked = words["asked"] | {"tests": words["tests"]}
    options = " ".join(
        f"--{key} {' '.join(value) if isinstance(value, list) else value}"
        for key, value in asked.items()
    )
    return f"""# Mutants: small changes of the code, by which some test should fail

    python tests/mutants {options}

{_made(len(found), drawn, words)}

{WHY}
## Score

Of those that some test reaches, the share that is killed or hangs. Each package has as many mutants
as it has a share of all; a score of few says little.

| package | {" | ".join(KINDS)} | score |
|---|---|---|---|---|---|
{table}
## Not killed

{"".join(_shown(alive))}"""


def _made(tried: int, drawn: int, words: dict[str, Any]) -> str:
    left_out = ", ".join(f"`{each}`" for each in words["left out"])
    return (
        f"{tried} of {drawn} mutants that were drawn, of commit {words['commit']}; "
        f"mutmut {version('mutmut')}, coverage {version('coverage')}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores; {words['clock']}. "
        f"Tests: `{words['marks']}` in {' '.join(words['tests'])}, without {left_out}."
    )


def _shown(alive: list[dict[str, Any]]) -> Iterable[str]:
    for each in alive:
        more = f", {each['left_out']} dearer ones were left out" if each["left_out"] else ""
        why = f"{each['tests']} tests run it and pass{more}."
        if each["outcome"] == "unreached":
            why = "No test runs it in its own process."
        yield f"### {each['file']}:{each['line']}\n\n{why}\n\n```diff\n{each['diff']}```\n\n"


def score(count: Counter[str]) -> str:
    """Return the percentage of reached mutants that tests noticed."""
    noticed, reached = count["killed"] + count["hung"], count.total() - count["unreached"]
    return f"{100 * noticed / reached:.0f} %" if reached else "–"
