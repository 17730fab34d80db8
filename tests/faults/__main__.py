"""Puts known bugs into a copy of the tree, one at a time: the test that each names has to fail.

    make faults                            # all of them, some minutes
    .venv/bin/python tests/faults -k lr    # those whose name has this pattern in it

A fault is a table in one of the TOML files beside this one:

    [[fault]]
    name = "loss-not-divided"              # reducer.loss-not-divided, in reducer.toml
    why = "One sentence: whose bug it is, and what it does."
    file = "lsgd/comm/reducer.py"
    old = "part = loss / self._examples"   # occurs once in the file
    new = "part = loss"
    test = "tests/comm/test_reducer.py::test_large_gradients_survive_fp16[2]"

Each named test first has to pass without a fault. With it, a test that is skipped, is not found or
stops at an error before its first line has caught nothing.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 300
"""Seconds that a test may take."""
PASSED, FAILED = "passes", "fails"
OUTCOMES = {"failure": FAILED, "error": "stops at an error before it", "skipped": "is skipped"}
"""By the tags of pytest's report; a test without any of them has passed."""


@dataclass(frozen=True)
class Fault:
    """A bug as a replacement of text in one file."""

    name: str
    """With the area, which is the name of its TOML file."""
    why: str
    file: str
    old: str
    new: str
    test: str
    """The pytest node that must fail, with its parameters."""

    def planted(self, text: str) -> str:
        """The content of the file with the fault in it; raises ValueError if it has no place."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"old occurs {times} times in {self.file}; copy it from there anew")
        return text.replace(self.old, self.new)


def load_faults(folder: Path) -> list[Fault]:
    """All faults of the TOML files in a folder, file by file."""
    faults = []
    for path in sorted(folder.glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text("utf-8"))["fault"]
            faults += [Fault(**each | {"name": f"{path.stem}.{each['name']}"}) for each in tables]
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} is not a list of faults ({error}); see --help") from None
    return faults


def copy_tree(target: Path) -> None:
    """Copy what git tracks, and what it does not ignore, as it is in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def run(copy: Path, tests: Sequence[str]) -> dict[str, str]:
    """What each of these tests does in the copy; pytest runs none if one of them is not there."""
    report = copy.with_suffix(".xml")
    report.unlink(missing_ok=True)
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # what another fault made it remember
    environment = {"LSGD_TEST_DATA": str(ROOT.parent / "shared/data")} | os.environ
    # Bytecode is told from newer source by seconds and size, which a fault may leave as they are.
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--junit-xml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    with (
        copy.with_suffix(".txt").open("w") as said,
        subprocess.Popen(
            command, cwd=copy, env=environment, stdout=said, stderr=said, start_new_session=True
        ) as process,
    ):
        try:
            code = process.wait(limit := LIMIT * len(tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return dict.fromkeys(tests, f"has not ended after {limit} s")
    if code not in (0, 1):
        return {}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = [each.tag for each in case if each.tag in OUTCOMES]
        # The first counts: one that fails may be there once more, for an error in its tear-down.
        found.setdefault(f"{case.get('classname')}.{case.get('name')}", (*tags, "")[0])
    names = {test: _name_in_report(test) for test in tests}
    return {test: OUTCOMES.get(found[n], PASSED) for test, n in names.items() if n in found}


def _name_in_report(test: str) -> str:
    file, _, rest = test.partition(".py::")
    name, bracket, parameters = rest.partition("[")
    return f"{file.replace('/', '.')}.{name.replace('::', '.')}{bracket}{parameters}"


def without_faults(copy: Path, tests: list[str]) -> dict[str, str]:
    """What these tests do as the tree is, by their names."""
    found = run(copy, tests) if tests else {}
    return found or {test: did for each in tests for test, did in run(copy, [each]).items()}


def complaint(fault: Fault, before: str, copy: Path) -> str:
    """Why the fault is not caught by its test, which did `before` without it; empty if it is."""
    path = copy / fault.file
    try:
        whole = path.read_text("utf-8")
        broken = fault.planted(whole)
    except (OSError, ValueError) as error:
        return str(error)
    if before != PASSED:
        return f"its test {before} without the fault; name one that passes"
    path.write_text(broken, "utf-8")
    try:
        after = run(copy, [fault.test]).get(fault.test, "is no longer found")
    finally:
        path.write_text(whole, "utf-8")
    return "" if after == FAILED else f"its test {after}; name one that fails, or write it"


def walk(faults: list[Fault], jobs: int, folder: Path) -> dict[str, str]:
    """Try all faults in so many copies side by side, a line each; returns the complaints."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        copy_tree(copy := folder / f"copy{number}")
        copies.put(copy)

    @contextmanager
    def lent():
        copy = copies.get()
        try:
            yield copy
        finally:
            copies.put(copy)

    def undisturbed(tests: list[str]) -> dict[str, str]:
        with lent() as copy:
            return without_faults(copy, tests)

    def tried(fault: Fault) -> tuple[Fault, str, float]:
        with lent() as copy:
            begin = time.monotonic()
            why = complaint(fault, before.get(fault.test, "is not found"), copy)
            return fault, why, time.monotonic() - begin

    tests = sorted({fault.test for fault in faults})
    files = sorted({test.partition("::")[0] for test in tests})
    # Whole files, since some tests share what takes long.
    shares = [[t for t in tests if t.partition("::")[0] in files[i::jobs]] for i in range(jobs)]
    complaints = {}
    with ThreadPoolExecutor(jobs) as pool:
        before = {test: did for each in pool.map(undisturbed, shares) for test, did in each.items()}
        for fault, why, seconds in pool.map(tried, faults):
            word = "MISSED" if why else "caught"
            print(f"{word}  {fault.name:45} {fault.test}  {seconds:.0f} s", flush=True)
            complaints |= {fault.name: why} if why else {}
    return complaints


def main() -> int:
    """The command line; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tests/faults", description=__doc__, formatter_class=raw
    )
    parser.add_argument("-k", metavar="PATTERN", default="", help="regular expression for names")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--jobs", type=int, default=cores, help="copies side by side (default: a core each)"
    )
    arguments = parser.parse_args()
    faults = [each for each in load_faults(HERE) if re.search(arguments.k, each.name)]
    if not faults:
        parser.error(f"no fault has {arguments.k!r} in its name; see tests/faults/*.toml")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lsgd-faults-") as folder:
        complaints = walk(faults, max(1, min(arguments.jobs, len(faults))), Path(folder))
    seconds = time.monotonic() - begin
    print(f"{len(faults) - len(complaints)} of {len(faults)} faults caught, {seconds:.0f} s")
    for name, why in complaints.items():
        print(f"{name}: {why}")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
