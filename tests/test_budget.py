"""What keeps the short run of the tests short."""

import os
import re
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from helpers import budget
from helpers.budget import pytest_runtest_makereport, pytest_runtest_protocol

budget.CPU_SECONDS = 0.3
"""
TESTS = """
import subprocess, sys, time
import pytest

WORK = "import time\\nwhile time.process_time() < 0.6: pass"

def work():
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass

@pytest.fixture
def prepared():
    work()

def test_short(): time.sleep(0.5)
def test_long(): work()
def test_long_fixture(prepared): pass
def test_long_child(): subprocess.run([sys.executable, "-c", WORK], check=True)
@pytest.mark.slow
def test_marked(): work()
def test_broken(): assert False
"""


def test_a_test_that_takes_long_without_a_mark_fails(tmp_path: Path) -> None:
    """By CPU seconds, its fixtures' and children's too; waiting is free."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors = re.findall(r"^ERROR test_some\.py::(\w+)", done.stdout, re.MULTILINE)
    assert errors == ["test_long", "test_long_fixture", "test_long_child"]
    assert re.findall(r"^FAILED test_some\.py::(\w+)", done.stdout, re.MULTILINE) == ["test_broken"]
    assert "PASSED test_some.py::test_short" in done.stdout
    assert "PASSED test_some.py::test_marked" in done.stdout
    assert re.search(r"test_long took 0\.\d CPU seconds, and .* may take 0\.3: make", done.stdout)
