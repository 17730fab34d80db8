"""The report of processor seconds that ends a run of the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BUDGETS = """
work = 1e9
one_test = 0
[suites]
roomy = 1e15
tight = 1
[files]
"test_some.py" = 2
"""
CONFTEST = """
from pathlib import Path
from helpers import budget

budget.BUDGETS = Path(__file__).parent / "budgets.toml"

def pytest_addoption(parser):
    parser.addoption("--budget", default="")
    parser.addoption("--cpu-record")

def pytest_configure(config):
    config.pluginmanager.register(budget.CpuTimeReport(config))
"""
TESTS = """
import pytest

def test_of_any_length(): pass
@pytest.mark.slow
def test_that_may_be_long(): pass
"""


@pytest.mark.slow
def test_a_suite_above_its_budget_is_reported_and_does_not_fail(tmp_path: Path) -> None:
    """In one process and in several; a second counts by the machine's speed: here for centuries."""
    for name, text in ("budgets.toml", BUDGETS), ("conftest.py", CONFTEST), ("test_some.py", TESTS):
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")

    def run(suite: str, *words: str) -> str:
        words = ("-c", "pytest.ini", "--rootdir=.", f"--budget={suite}", *words)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--cpu-record=record", *words],
            cwd=tmp_path,
            env=os.environ
            | {
                "PYTHONPATH": str(Path(__file__).parent.parent),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = run("roomy", "-p", "xdist.plugin", "-n", "2")
    assert "make roomy has" in first
    assert re.search(r"test_some\.py::test_of_any_length took \d+", first)
    assert "test_that_may_be_long took" not in first
    second = run("tight")
    assert re.search(r"make tight takes \d+ more than its 1 processor seconds", second)
    assert re.search(r"what has grown since .*: test_some\.py \+\d+", second)
    totals = [int(n) for out in (first, second) for n in re.findall(r"^(\d+) processor", out, re.M)]
    assert totals[1] > totals[0], "the second run prints the sum of both"
