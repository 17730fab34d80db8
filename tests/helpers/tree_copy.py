"""Copies of the source tree for mutation tests, and test runs in these copies."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
PASSED, FAILED = "passes", "fails"
OUTCOMES = {
    "failure": FAILED,
    "error": "stops at an error in its set-up",
    "skipped": "is skipped",
}
"""The outcomes of a test by the tags in pytest's XML report; without a tag it has passed."""


def copy_tree(target: Path) -> None:
    """Copy the tracked and the untracked, unignored files of the working tree to a folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(f"git does not list the files of {ROOT}; start from a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def pytest_in(
    copy: Path, words: Sequence[str], limit: float | None, **variables: str
) -> int | None:
    """Run pytest in a copy; return its exit code, or None if it was killed at the limit."""
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # failing examples of earlier bugs
    environment = {"LSGD_TEST_DATA": str(ROOT.parent / "shared/data")} | os.environ
    # Bytecode is outdated by the source's time in seconds and size, which a bug may not change.
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "LSGD_REQUIRE": ""}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, (copy, copy / "tests")))}
    # Load only the plugin that the tests need, since the other installed ones take a second.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""} | variables
    plugins = ["-p", "no:cacheprovider", "-p", "hypothesispytest", "--hypothesis-seed=0"]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *plugins, *words], cwd=copy, env=environment,
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process.pid)  # with processes that a killed test has left behind


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def outcomes(report: Path, tests: Sequence[str]) -> dict[str, str]:
    """Return the outcome of each of these tests that is in pytest's XML report."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = [each.tag for each in case if each.tag in OUTCOMES]
        # The first entry counts: a failing test may have a second one, for an error in teardown.
        found.setdefault(f"{case.get('classname')}.{case.get('name')}", (*tags, "")[0])
    names = {test: _name_in_report(test) for test in tests}
    return {test: OUTCOMES.get(found[n], PASSED) for test, n in names.items() if n in found}


def _name_in_report(test: str) -> str:
    file, _, rest = test.partition(".py::")
    name, bracket, parameters = rest.partition("[")
    return f"{file.replace('/', '.')}.{name.replace('::', '.')}{bracket}{parameters}"
