"""Random choice of mutants: small changes of the code by mutmut, spread over the packages."""

import ast
import difflib
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these imports take seconds, and pytest imports each file that may have doctests
    from libcst import Module
    from mutmut.mutation.file_mutation import Mutation

TEXTS = re.compile(r"\b(help|description|epilog|metavar)=|\bprint\(|\bwarn(ing)?\(")
"""A pattern of lines with text for people; expressions that begin there are not mutated."""


@dataclass(frozen=True)
class Mutant:
    """A change in one file."""

    file: str
    line: int
    operator: str
    """The kind of syntax node that mutmut has changed."""
    diff: str
    text: str
    """The content of the whole file with the change."""

    @property
    def package(self) -> str:
        """The package of the file, such as lsgd/rules, or the file itself if it is in none."""
        return package_of(self.file)


def package_of(file: str) -> str:
    """Return the package of a file, such as lsgd/rules for lsgd/rules/optim.py, or a lone file."""
    return "/".join(file.split("/")[:2])


def draw(root: Path, files: Sequence[str], number: int, seed: int, jobs: int = 1) -> list[Mutant]:
    """Draw mutants of these files, from each package in proportion to its number of mutations."""
    # A forked copy of a process that has run other tests, with their threads, may die at once.
    with ProcessPoolExecutor(jobs, get_context("forkserver")) as pool:
        counts = dict(zip(files, pool.map(partial(_count, root), files), strict=True))
        packages: Counter[str] = Counter()
        for file, count in counts.items():
            packages[package_of(file)] += count
        chance = random.Random(seed)
        chosen: dict[str, list[int]] = {}
        for package, share in shares(packages, number).items():
            own = [(f, i) for f in files if package_of(f) == package for i in range(counts[f])]
            for file, i in chance.sample(own, share):
                chosen.setdefault(file, []).append(i)
        made = pool.map(partial(_make, root), chosen, map(sorted, chosen.values()))
        mutants = [mutant for each in made for mutant in each]
    chance.shuffle(mutants)  # so that a part of them represents the whole
    return mutants


def shares(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Divide a number in proportion to the counts, each share being at most its count.

    The largest remainders get what rounding down leaves.
    """
    total = sum(counts.values())
    number = min(number, total)
    exact = {name: number * count / total for name, count in counts.items() if count}
    whole = {name: int(share) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: (whole[name] - exact[name], name))
    return {n: whole[n] + (n in by_rest[: number - sum(whole.values())]) for n in exact}


def _count(root: Path, file: str) -> int:
    return sum(1 for _ in _mutations((root / file).read_text("utf-8"))[1])


def _make(root: Path, file: str, which: Iterable[int]) -> list[Mutant]:
    from libcst import Module as Tree
    from libcst import ensure_type
    from mutmut.mutation.file_mutation import deep_replace

    text = (root / file).read_text("utf-8")
    tree, found = _mutations(text)
    made = []
    for i in which:
        line, mutation = found[i]
        new = deep_replace(tree, mutation.original_node, mutation.mutated_node)
        changed = ensure_type(new, Tree).code
        lines = (each.splitlines(keepends=True) for each in (text, changed))
        diff = "".join(difflib.unified_diff(*lines, file, file, n=1))
        made.append(Mutant(file, line, type(mutation.original_node).__name__, diff, changed))
    return made


def _mutations(text: str) -> "tuple[Module, list[tuple[int, Mutation]]]":
    """Return a file's syntax tree and mutmut's mutations of it, except of text for people."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    class Visitor(MutationVisitor):
        """mutmut's visitor, extended to functions with decorators.

        mutmut skips them, since it keeps all variants of a function in one module and would
        decorate each. Here a file has one change.
        """

        def _skip_node_and_children(self, node: libcst.CSTNode) -> bool:
            if isinstance(node, libcst.FunctionDef) and node.decorators:
                return False
            return bool(super()._skip_node_and_children(node))

    lines = text.splitlines()
    ignored = {i for i, line in enumerate(lines, 1) if TEXTS.search(line)}
    wrapper = MetadataWrapper(libcst.parse_module(text), unsafe_skip_copy=True)
    visitor = Visitor(mutation_operators, IgnoredCode(set(), set(), ignored))
    wrapper.visit(visitor)
    places = wrapper.resolve(PositionProvider)
    found = []
    for mutation in visitor.mutations:
        node = mutation.original_node
        # A string with a blank is for people; one without is a key, a name or a path.
        is_text = isinstance(node, libcst.SimpleString) and " " in node.value
        if not is_text and (place := places.get(node)):
            found.append((place.start.line, mutation))
    return wrapper.module, found


def lines_of_statement(text: str, line: int) -> range:
    """Return the lines of the smallest statement around a line.

    For a compound statement, such as `if` or `def`, they are those of its head.
    """
    best = range(1, len(text.splitlines()) + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.match_case | ast.ExceptHandler):
            span = range(
                _first(node), (node.end_lineno or 0) + 1 if _is_simple(node) else _head(node)
            )
            if line in span and len(span) < len(best):
                best = span
    return best


def _first(node: Any) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno


def _is_simple(node: Any) -> bool:
    return not getattr(node, "body", None) and not isinstance(node, ast.Match)


def _head(node: Any) -> int:
    """Return the line after the head of a compound statement."""
    first = node.cases[0].pattern.lineno if isinstance(node, ast.Match) else node.body[0].lineno
    return max(first, _first(node) + 1)
