"""Puts known bugs into a copy of the tree, one at a time: the test that each names has to fail.

    make faults                            # all of them, some minutes
    .venv/bin/python tests/faults -k lr    # those with lr in their names

A fault is a table in one of the TOML files beside this one:

    [[fault]]
    name = "loss-not-divided"              # reducer.loss-not-divided, in reducer.toml
    why = "One sentence: whose bug it is, and what it does."
    file = "lsgd/strategy/reducer.py"
    old = "part = loss / self._divisor"   # occurs once in the file
    new = "part = loss"
    test = "tests/strategy/test_reducer.py::test_large_gradients_survive_fp16[2]"

Each named test first has to pass without a fault. With it, a test that is skipped, is not found or
stops at an error before its first line has caught nothing.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

from lsgd.job.output import need_no_reader

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 300
"""Seconds that a test may take."""
PASSED, FAILED = "passes", "fails"
OUTCOMES = {
    "failure": FAILED,
    "error": "stops at an error in its set-up",
    "skipped": "is skipped",
}
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


def run(copy: Path, tests: Sequence[str]) -> dict[str, str]:
    """What each of these tests does in the copy; pytest runs none if one of them is not there."""
    report = copy.with_suffix(".xml")
    report.unlink(missing_ok=True)
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # what another fault made it remember
    environment = {"LSGD_TEST_DATA": str(ROOT.parent / "shared/data")} | os.environ
    # Bytecode is told from newer source by seconds and size, which a fault may leave as they are.
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    # Of the installed plugins only the one that tests need, since others take a second to load.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    plugins = ["-p", "no:cacheprovider", "-p", "hypothesispytest", "--hypothesis-seed=0"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, f"--junit-xml={report}", *tests]
    with subprocess.Popen(
        command, cwd=copy, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            code = process.wait(limit := LIMIT * len(tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return dict.fromkeys(tests, f"has not ended after {limit} s")
    return outcomes(report, tests) if code in (0, 1) else {}


def outcomes(report: Path, tests: Sequence[str]) -> dict[str, str]:
    """What each of the tests did that are in pytest's report."""
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


class Copies:
    """Copies of the tree side by side, each lent to one thread at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        for i in range(number):
            _copy_tree(copy := folder / f"copy{i}")
            self.free.put(copy)

    @contextmanager
    def one(self) -> Iterator[Path]:
        """A copy as the tree is, to be given back like that."""
        copy = self.free.get()
        try:
            yield copy
        finally:
            self.free.put(copy)

    def without_faults(self, tests: list[str]) -> dict[str, str]:
        """What these tests do."""
        with self.one() as copy:
            found = run(copy, tests) if tests else {}
            return found or {test: did for t in tests for test, did in run(copy, [t]).items()}

    def with_fault(self, fault: Fault, before: str) -> tuple[str, float]:
        """The complaint about a fault, and the seconds that it took."""
        with self.one() as copy:
            begin = time.monotonic()
            return complaint(fault, before, copy), time.monotonic() - begin


def _copy_tree(target: Path) -> None:
    """Copy what git tracks, and what it does not ignore, as it is in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(f"git does not list the files of {ROOT}; start from a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def walk(faults: list[Fault], copies: Copies, jobs: int) -> dict[str, str]:
    """Try all faults, a line each; returns the complaints by the faults' names."""
    tests = sorted({fault.test for fault in faults})
    files = sorted({test.partition("::")[0] for test in tests})
    # Whole files, since some tests share what takes long.
    shares = [[t for t in tests if t.partition("::")[0] in files[i::jobs]] for i in range(jobs)]
    width = max(len(fault.name) for fault in faults)
    complaints: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        did: dict[str, str] = {}
        for part in pool.map(copies.without_faults, shares):
            did |= part
        before = [did.get(fault.test, "is not found") for fault in faults]
        tried = pool.map(copies.with_fault, faults, before)
        for fault, (why, seconds) in zip(faults, tried, strict=True):
            word = "MISSED" if why else "caught"
            print(f"{word}  {fault.name:{width}}  {fault.test}  {seconds:.0f} s", flush=True)
            if why:
                complaints[fault.name] = why
    return complaints


def main() -> int:
    """The command line; returns the exit code."""
    need_no_reader()
    parser = argparse.ArgumentParser(
        prog="python tests/faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-k", metavar="PART", default="", help="only faults with it in their names")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="at once (default: one per core)")
    arguments = parser.parse_args()
    faults = [each for each in load_faults(HERE) if arguments.k in each.name]
    if not faults:
        parser.error(f"no fault has {arguments.k!r} in its name; they are in tests/faults/*.toml")
    begin, jobs = time.monotonic(), max(1, min(arguments.jobs, len(faults)))
    with tempfile.TemporaryDirectory(prefix="lsgd-faults-") as folder:
        complaints = walk(faults, Copies(Path(folder), jobs), jobs)
    seconds = time.monotonic() - begin
    print(f"{len(faults) - len(complaints)} of {len(faults)} faults caught, {seconds:.0f} s")
    for name, why in complaints.items():
        print(f"{name}: {why}")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
