"""What a machine lacks is skipped, and fails where it is required."""

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers.capabilities import CAPABILITIES, REPOSITORY, SELF_CHECKED

CONFTEST = """
from helpers import capabilities

capabilities.CAPABILITIES = {
    "here": capabilities.Capability(lambda: True, "here is not installed", "pip install here"),
    "gone": capabilities.Capability(lambda: False, "gone is not installed", "pip install gone"),
    "lost": capabilities.Capability(lambda: False, "lost is not installed", "pip install lost"),
}

def pytest_configure(config):
    config.pluginmanager.register(capabilities)
"""
TESTS = """
import pytest
from helpers.capabilities import skip_or_fail, require_capability

@pytest.mark.here
def test_here(): pass
@pytest.mark.gone
@pytest.mark.parametrize("n", [1, 2])
def test_gone(n): pass
def test_gone_after_all(): require_capability("gone")
def test_no_right(): skip_or_fail("mount", "no right to mount", "tests as root")
@pytest.mark.lost
def test_lost(): pass
def test_lost_after_all(): require_capability("lost")
"""


def test_what_is_required_fails_and_the_rest_is_skipped_with_its_fix(tmp_path: Path) -> None:
    """Of tests in other processes too."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", "-n", "1"],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "tests"), str(REPOSITORY)))}
        | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        | {"LSGD_REQUIRE": "gone,mount", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "= 2 failed, 1 passed, 2 skipped, 2 errors in " in said
    assert "LSGD_REQUIRE names gone, but gone is not installed: pip install gone" in said
    assert "LSGD_REQUIRE names mount, but no right to mount: tests as root" in said
    [line] = [line for line in said.splitlines() if "lost" in line and "pip" in line]
    assert re.split(" {2,}", line.strip()) == ["2", "lost is not installed", "pip install lost"]


def test_ci_requires_all_but_what_needs_a_gpu_or_is_soaked_alone() -> None:
    """Or libraries of other trainers, which nothing else installs.

    A name that is missing there, or misspelt, would skip its tests unseen.
    """
    [names] = re.findall(r"^required=(\S+)$", (REPOSITORY / ".ci/run").read_text(), re.MULTILINE)
    left_out = {"gpu", "apex", "postgresql", "trainers"}
    assert set(names.split(",")) == {*CAPABILITIES, *SELF_CHECKED} - left_out
