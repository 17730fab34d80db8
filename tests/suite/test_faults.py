"""The faults of tests/faults, which are not run here, and what runs them, in a made-up tree."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WALKER = ROOT / "tests/faults/__main__.py"
FAULTS = runpy.run_path(str(WALKER), run_name="walker")["load_faults"](WALKER.parent)


@pytest.mark.parametrize("fault", [pytest.param(each, id=each.name) for each in FAULTS])
def test_a_fault_has_a_name_of_its_own_its_place_and_its_test(fault: Any) -> None:
    """Once in the file, which still compiles; the name without its area, so that it may move."""
    name = fault.name.partition(".")[2]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert [each.name.partition(".")[2] for each in FAULTS].count(name) == 1
    broken = fault.apply_to((ROOT / fault.file).read_text("utf-8"))
    assert fault.old != fault.new
    if fault.file.endswith(".py"):
        compile(broken, fault.file, "exec")
    assert fault.why.endswith(".")
    path, *names = fault.test.partition("[")[0].split("::")
    scope: Any = ast.parse((ROOT / path).read_text("utf-8"))
    for name in names:
        (scope,) = (each for each in scope.body if getattr(each, "name", "") == name)
    assert isinstance(scope, ast.FunctionDef)


MADE_UP = {
    "double.py": "def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n",
    "test_double.py": """\
import pytest
from double import double

@pytest.mark.parametrize("x", [1, 2])
def test_double(x):
    assert double(x) == 2 * x

def test_broken():
    assert double(1) == 3

def test_skipped():
    pytest.skip("for want of something")
""",
    "tests/faults/made-up.toml": "".join(
        f"[[fault]]\nname = '{name}'\nwhy = 'Why.'\nfile = 'double.py'\nold = '{old}'\n"
        f"new = '{new}'\ntest = 'test_double.py::{test}'\n"
        for name, old, new, test in (
            ("caught", "2 * x", "3 * x", "test_double[1]"),
            ("missed", "3 * x", "4 * x", "test_double[2]"),
            ("gone", "5 * x", "6 * x", "test_double[1]"),
            ("no-import", "def double", "def dribble", "test_double[1]"),
            ("no-test", "2 * x", "3 * x", "test_triple"),
            ("fails-anyway", "2 * x", "3 * x", "test_broken"),
            ("skipped", "2 * x", "3 * x", "test_skipped"),
        )
    ),
}
COMPLAINTS = """\
made-up.fails-anyway: its test fails without the fault; name one that passes
made-up.gone: old occurs 0 times in double.py; copy it from there anew
made-up.missed: its test passes; name one that fails, or write it
made-up.no-import: its test is no longer found; name one that fails, or write it
made-up.no-test: its test is not found without the fault; name one that passes
made-up.skipped: its test is skipped without the fault; name one that passes
"""


@pytest.mark.git
@pytest.mark.slow
def test_only_a_test_that_fails_by_the_fault_catches_it(tmp_path: Path) -> None:
    """And the tree that is tried stays as it is."""
    for name, text in MADE_UP.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("faults/__main__.py", "helpers/__init__.py", "helpers/tree_copy.py"):
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = [sys.executable, "tests/faults", "--jobs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    lines = done.stdout.splitlines(keepends=True)
    assert (done.returncode, done.stderr) == (1, "")
    (caught,) = (line for line in lines if line.startswith("caught"))
    assert re.fullmatch(
        r"caught  made-up.caught +test_double.py::test_double\[1\]  \d+ s\n", caught
    )
    assert re.fullmatch(r"1 of 7 faults caught, \d+ s\n", lines[7])
    assert "".join(sorted(lines[8:])) == COMPLAINTS
    assert (tmp_path / "double.py").read_text() == MADE_UP["double.py"]
