"""The page and the step: short enough to be read, and the same for every workload and strategy."""

import ast
import inspect
from pathlib import Path

import pytest

from lsgd import step, train

SEAMS = ("workload", "strategy")


def choices(source: str) -> list[str]:
    """What the source chooses by, in words: the tests of its ifs and loops, and what it matches.

    >>> choices("if a.b: pass\\nmatch c:\\n  case 1 if d: pass\\n[e if f else g for h in i if j]")
    ['a.b', 'c', 'd', 'f', 'j']
    """
    made: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
                made.append(node.test)
            case ast.Match():
                made.append(node.subject)
            case ast.match_case(guard=ast.expr()):
                made.append(node.guard)
            case ast.comprehension():
                made += node.ifs
    return [ast.unparse(each) for each in made]


@pytest.mark.parametrize("module", [train, step])
def test_no_choice_is_by_what_is_learned_or_how(module) -> None:
    source = inspect.getsource(module)
    assert all(word in source for word in SEAMS)
    assert [each for each in choices(source) if any(word in each for word in SEAMS)] == []


@pytest.mark.parametrize(
    "chosen",
    ["if learner.workload.parts: pass", "match recipe.strategy.name:\n  case 'allreduce': pass"],
)
def test_a_choice_is_seen(chosen: str) -> None:
    assert any(word in choices(chosen)[0] for word in SEAMS)


def test_the_page_and_the_step_are_read_at_a_sight() -> None:
    assert len(Path(train.__file__).read_text().splitlines()) <= 180
    assert len(inspect.getsource(step.train_step).splitlines()) <= 40
