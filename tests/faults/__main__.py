"""Plant known bugs in a copy of the tree, one at a time, and check that the named tests fail.

    make faults                            # all faults, some minutes
    .venv/bin/python tests/faults -k lr    # those with lr in their names

A fault is a table in one of the TOML files beside this one:

    [[fault]]
    name = "loss-not-divided"              # trajectory.loss-not-divided, in trajectory.toml
    why = "One sentence: whose bug it is, and what it does."
    file = "lsgd/strategy/reducer.py"
    old = "part = loss / self._divisor"    # occurs once in the file
    new = "part = loss"
    test = "tests/strategy/test_reducer.py::test_large_gradients_survive_fp16[2]"

Each fault is a real bug or breaks a promise of lsgd: a user, a reader or another implementation has
had it. `make mutants` tests broadly.

Each named test must first pass without a fault. A test that is skipped, is not found or stops at an
error before its first line with the fault does not count as failed.
"""

import argparse
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lsgd.job.output import guard_output

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from helpers.tree_copy import FAILED, PASSED, copy_tree, outcomes, pytest_in  # noqa: E402

LIMIT = 300
"""The time limit of a test, in seconds."""


@dataclass(frozen=True)
class Fault:
    """A bug as a replacement of text in one file."""

    name: str
    """The fault's name, with its TOML file's name as prefix."""
    why: str
    file: str
    old: str
    new: str
    test: str
    """The pytest node that must fail, with its parameters."""

    def apply_to(self, text: str) -> str:
        """Return the file's content with the fault; raise ValueError unless `old` occurs once."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"old occurs {times} times in {self.file}; copy it from there anew")
        return text.replace(self.old, self.new)


def load_faults(folder: Path) -> list[Fault]:
    """Load the faults of all TOML files in a folder, file by file."""
    faults = []
    for path in sorted(folder.glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text("utf-8"))["fault"]
            faults += [Fault(**each | {"name": f"{path.stem}.{each['name']}"}) for each in tables]
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} is not a list of faults ({error}); see --help") from None
    return faults


def run(copy: Path, tests: Sequence[str]) -> dict[str, str]:
    """Run these tests in the copy, and return the outcome of each.

    pytest runs none of them, and the result is empty, if one is not found.
    """
    report = copy.with_suffix(".xml")
    limit = LIMIT * len(tests)
    code = pytest_in(copy, [f"--junit-xml={report}", *tests], limit)
    if code is None:
        return dict.fromkeys(tests, f"has not ended after {limit} s")
    return outcomes(report, tests) if code in (0, 1) else {}


def why_missed(fault: Fault, before: str, copy: Path) -> str:
    """Return why the test does not catch the fault, or an empty string if it does.

    `before` is the test's outcome without the fault.
    """
    path = copy / fault.file
    try:
        whole = path.read_text("utf-8")
        broken = fault.apply_to(whole)
    except (OSError, ValueError) as error:
        return str(error)
    if before != PASSED:
        return f"its test {before} without the fault; name one that passes"
    path.write_text(broken, "utf-8")
    after = run(copy, [fault.test]).get(fault.test, "is no longer found")
    path.write_text(whole, "utf-8")
    return "" if after == FAILED else f"its test {after}; name one that fails, or write it"


def try_faults(faults: Sequence[Fault], copy: Path) -> dict[str, str]:
    """Try faults in a new copy, print a line for each, and return complaints by fault name."""
    copy_tree(copy)
    tests = sorted({fault.test for fault in faults})
    before = run(copy, tests) or {test: did for t in tests for test, did in run(copy, [t]).items()}
    complaints: dict[str, str] = {}
    for fault in faults:
        begin = time.monotonic()
        why = why_missed(fault, before.get(fault.test, "is not found"), copy)
        seconds = time.monotonic() - begin
        word = "MISSED" if why else "caught"
        print(f"{word}  {fault.name:60}  {fault.test}  {seconds:.0f} s", flush=True)
        if why:
            complaints[fault.name] = why
    return complaints


def main() -> int:
    """Run the command line and return the exit code."""
    guard_output()
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
    # Sorting by test keeps tests of one file together, since some share slow fixtures.
    faults.sort(key=lambda fault: fault.test)
    shares = [faults[len(faults) * i // jobs : len(faults) * (i + 1) // jobs] for i in range(jobs)]
    with tempfile.TemporaryDirectory(prefix="lsgd-faults-") as folder, ThreadPoolExecutor() as pool:
        copies = [Path(folder, f"copy{i}") for i in range(jobs)]
        complaints = {
            name: why for c in pool.map(try_faults, shares, copies) for name, why in c.items()
        }
    seconds = time.monotonic() - begin
    print(f"{len(faults) - len(complaints)} of {len(faults)} faults caught, {seconds:.0f} s")
    for name, why in complaints.items():
        print(f"{name}: {why}")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
