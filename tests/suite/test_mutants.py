"""What draws mutants and tries them, in a made-up tree."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.drawing import draw, lines_of_statement, shares

TESTS = Path(__file__).parent.parent
DOUBLE = '''\
"""Texts are for people: this one and the next are left alone."""

HINT = "a blank makes it a text"


def double(x: int | None) -> int:
    return 2 * x
'''
TESTS_OF_DOUBLE = '''\
from functools import cache, partial

import pytest

from lsgd import alone, double, shared


@cache
def cached():
    return shared.cached()


@pytest.fixture(scope="module")
def fixed():
    return shared.fixed()


def test_1(fixed):
    assert double.double(1) == 2 and cached()


def test_2(fixed):
    """Fails by what runs in the first test alone."""
    assert cached() == cache(partial(int, "3"))() == 3 and fixed == 4
'''
DECORATED = "class A:\n    @property\n    def one(self):\n        return 1\n"


def test_a_package_has_as_many_as_its_share_of_all() -> None:
    assert shares({"a": 600, "b": 300, "c": 97, "d": 3, "e": 0}, 10) == {
        "a": 6,
        "b": 3,
        "c": 1,
        "d": 0,
    }
    assert shares({"a": 2, "b": 1}, 300) == {"a": 2, "b": 1}


@pytest.mark.slow
def test_a_draw_is_of_code_and_told_by_its_seed(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    (tmp_path / "decorated.py").write_text(DECORATED)
    drawn = draw(tmp_path, ["decorated.py", "double.py"], 9, seed=0)
    changed = {(each.file, each.diff.rpartition("\n+")[2].partition("\n")[0]) for each in drawn}
    assert changed == {
        ("double.py", "HINT = None"),
        ("double.py", "    return 3 * x"),
        ("double.py", "    return 2 / x"),
        ("decorated.py", "        return 2"),
    }
    some = [draw(tmp_path, ["decorated.py", "double.py"], 2, seed) for seed in range(9)]
    assert some[0] == draw(tmp_path, ["decorated.py", "double.py"], 2, seed=0)
    assert any(each != some[0] for each in some)


@pytest.mark.parametrize(
    ("line", "lines"),
    [(1, (1, 2)), (2, (2, 6)), (4, (2, 6)), (6, (6, 7)), (8, (7, 9)), (9, (9, 10))],
)
def test_a_statement_of_several_lines_is_run_as_one(line: int, lines: tuple[int, int]) -> None:
    text = "a = 1\nb = [\n    1,\n    2,\n]\nc = 3\nif (a and\n        b):\n    pass\n"
    assert lines_of_statement(text, line) == range(*lines)


@pytest.mark.git
@pytest.mark.slow
def test_what_a_test_notices_is_killed_and_what_none_does_survives(tmp_path: Path) -> None:
    """The tree stays as it is, and a second start has nothing left to do."""
    for name in ("mutants", "helpers"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    for name in (
        "mutants/__main__",
        "mutants/drawing",
        "mutants/plugin",
        "mutants/reporting",
        "helpers/tree_copy",
    ):
        shutil.copy(TESTS / f"{name}.py", tmp_path / f"tests/{name}.py")
    (tmp_path / "lsgd").mkdir()
    (tmp_path / "lsgd/__init__.py").write_text("")
    (tmp_path / "lsgd/double.py").write_text(DOUBLE.replace("HINT =", "# HINT ="))
    (tmp_path / "lsgd/alone.py").write_text("def alone():\n    return 1\n")
    (tmp_path / "lsgd/shared.py").write_text(
        "def cached():\n    return 3\n\n\ndef fixed():\n    return 4\n"
    )
    (tmp_path / "tests/test_double.py").write_text(TESTS_OF_DOUBLE)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    words = ["--jobs", "1", "--number", "9", "--work", "../work", "--out", "out"]
    command = [sys.executable, "tests/mutants", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    found = [json.loads(line) for line in (tmp_path / "out/mutants.jsonl").read_text().splitlines()]
    outcomes = {re.findall(r"\n\+ *(.*)\n", each["diff"])[-1]: each["outcome"] for each in found}
    assert outcomes == {
        "return 3 * x": "killed",
        "return 2 / x": "survived",
        "return 2": "unreached",
        "return 4": "killed",
        "return 5": "killed",
    }
    by = {each["file"]: each["by"].partition("::")[2] for each in found if each["by"]}
    assert by == {"lsgd/double.py": "test_1", "lsgd/shared.py": "test_2"}
    assert "| lsgd/double.py | 1 | 0 | 1 | 0 | 50 % |" in (tmp_path / "out/README.md").read_text()
    assert "2 * x" in (tmp_path / "lsgd/double.py").read_text()
    again = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900
    )
    assert again.stdout.startswith("5 mutants, 5 of them tried")
    assert "left)" not in again.stdout
