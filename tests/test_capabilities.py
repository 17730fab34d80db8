"""What a machine lacks is skipped, and said once with what would run it."""

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
}

def pytest_configure(config):
    config.pluginmanager.register(capabilities)
"""
TESTS = """
import pytest
from helpers.capabilities import missing, need

@pytest.mark.here
def test_here(): pass
@pytest.mark.gone
@pytest.mark.parametrize("n", [1, 2])
def test_gone(n): pass
def test_gone_after_all(): need("gone")
def test_no_right(): missing("mount", "no right to mount", "tests as root")
def test_unknown(): pytest.skip("nobody knows how")
"""
MODULES = {
    "plain.py": "import not_installed\n",
    "told.py": '""">>> 1\n1\n"""\nimport not_installed\n',
}


def run(folder: Path, *arguments: str, require: str = "") -> tuple[int, str]:
    for name, text in {"conftest.py": CONFTEST, "test_some.py": TESTS, **MODULES}.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *arguments],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "tests"), str(REPOSITORY)))}
        | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        | {"LSGD_REQUIRE": require, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_reason_is_a_line_with_its_tests_and_its_fix(tmp_path: Path) -> None:
    """Of tests in other processes too; a module without doctests is none, whatever it imports."""
    code, said = run(tmp_path, "--doctest-modules", "--doctest-ignore-import-errors", "-n", "1")
    assert code == 0, said
    lines = said[said.index("= skipped tests, and what would run them =") :].splitlines()
    assert "= 1 passed, 6 skipped in " in lines.pop()
    assert [re.split(" {2,}", line.strip()) for line in lines[1:]] == [
        ["3", "gone is not installed", "pip install gone"],
        ["1", "no right to mount", "tests as root"],
        ["1", "nobody knows how"],
        ["1", f"unable to import module {tmp_path / 'told.py'!r}"],
    ]


def test_what_is_required_fails_and_nothing_skipped_is_no_table(tmp_path: Path) -> None:
    code, said = run(tmp_path, "-k", "not unknown", require="gone,mount")
    assert code == 1, said
    assert "= 2 failed, 1 passed, 1 deselected, 2 errors in " in said
    assert "LSGD_REQUIRE names gone, but gone is not installed: pip install gone" in said
    assert "LSGD_REQUIRE names mount, but no right to mount: tests as root" in said
    assert "skipped" not in said


def test_ci_requires_all_but_what_needs_a_gpu() -> None:
    """A name that is missing there, or misspelt, would skip its tests unseen."""
    [names] = re.findall(r"LSGD_REQUIRE=(\S+)", (REPOSITORY / ".ci/run").read_text())
    assert set(names.split(",")) == {*CAPABILITIES, *SELF_CHECKED} - {"gpu", "apex"}
