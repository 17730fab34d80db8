"""A pytest plugin that reports the CPU time of the tests and compares it with a budget.

It fails no test, since a slow or busy machine is no bug. It counts CPU seconds, with those of every
process that a test started and waited for. A fixed workload, timed again and again during the same
run, scales these seconds and those of the budgets: cores that other programs share compute less in
a CPU second.
"""

import json
import resource
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers.launching import SERVER_PIDS

BUDGETS = Path(__file__).parent.parent / "budgets.toml"
BETWEEN_SAMPLES = 100.0
"""The seconds from one timing of the workload to the next, which take a thousandth of them."""
LONGER = ("slow", "distributed", "soak", "gpu")
"""The markers of tests that may exceed the time limit of one test."""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, with those of its children.

    These are the child processes waited for, and the fork servers with the forks that have exited:
    else the last test, at whose end the servers stop, would be charged for those of all tests.
    """
    taken = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    waited_for = sum(each.ru_utime + each.ru_stime for each in taken)
    # The times of a server and of its children, without the time in I/O that Linux adds to them.
    servers = (psutil.Process(pid).cpu_times()[:4] for pid in SERVER_PIDS)
    return waited_for + sum(map(sum, servers))


def timed_work() -> float:
    """Return the CPU seconds of a fixed workload, the minimum of three runs."""
    tries = []
    for _ in range(3):
        begin = time.process_time()
        sorted(hash(str(i)) for i in range(100_000))
        tries.append(time.process_time() - begin)
    return min(tries)


def report_lines(
    budgets: dict[str, Any], scale: float, runs: list[dict[str, Any]], suite: str
) -> Iterator[str]:
    """Yield the lines of the CPU time report of one or several runs of pytest.

    A run has `wall` (seconds), `files` (scaled CPU seconds by file, with "" for the time between
    tests) and `long` (scaled CPU seconds of the tests above the limit). `suite` names a budget; it
    may be empty.
    """
    files: Counter[str] = Counter()
    for run in runs:
        files.update(run["files"])
    total = sum(files.values())
    wall = sum(run["wall"] for run in runs)
    yield (
        f"{total:.0f} processor seconds in {wall / 60:.1f} minutes; "
        f"a second of this machine counts {scale:.2f}"
    )
    between = files.pop("")
    dearest = ", ".join(f"{file} {seconds:.0f}" for file, seconds in files.most_common(10))
    yield f"between tests: {between:.0f}; the dearest files: {dearest}"
    for test, seconds in [each for run in runs for each in run["long"].items()]:
        yield (
            f"{test} took {seconds:.1f}, and a test without a mark may take "
            f"{budgets['one_test']}: make it shorter, or mark it slow"
        )
    if not suite:
        return
    budget = budgets["suites"][suite]
    if total <= budget:
        yield f"make {suite} has {budget - total:.0f} of its {budget} processor seconds left"
        return
    grown = Counter({file: s - budgets["files"].get(file, 0) for file, s in files.items()})
    named = ", ".join(f"{file} {more:+.0f}" for file, more in grown.most_common(10) if more >= 1)
    yield f"make {suite} takes {total - budget:.0f} more than its {budget} processor seconds"
    yield f"what has grown since tests/budgets.toml: {named or 'no file by a second'}"


class CpuTimeReport:
    """A pytest plugin that sums the CPU seconds by test file, over all workers of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.monotonic()
        self.before_test = 0.0
        self.workers = 0.0
        """The CPU seconds of pytest-xdist's workers, which this process may not have waited for."""
        self.files: Counter[str] = Counter()
        self.unmarked: dict[str, float] = {}
        self.work = [timed_work()]
        self.sampled = self.began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Record the CPU seconds before the test and its fixtures."""
        if (now := time.monotonic()) - self.sampled > BETWEEN_SAMPLES:
            self.sampled = now
            self.work.append(timed_work())
        self.before_test = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU seconds of the test to the report of its teardown."""
        report = yield
        if report.when == "teardown":
            marked = any(map(item.get_closest_marker, LONGER))
            report.user_properties.append(("cpu", (cpu_seconds() - self.before_test, marked)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the CPU seconds of a test to those of its file, in the process that prints."""
        for name, (seconds, marked) in report.user_properties:
            if name == "cpu" and report.when == "teardown":
                self.files[report.nodeid.partition("::")[0]] += seconds
                if not marked:
                    self.unmarked[report.nodeid] = seconds

    def pytest_sessionfinish(self) -> None:
        """Send the CPU seconds of this pytest-xdist worker to the main process."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput |= {"cpu": cpu_seconds(), "work": self.work}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the CPU seconds that a pytest-xdist worker sent; a crashed worker sends none."""
        output = getattr(node, "workeroutput", {})
        if output:
            self.workers += output["cpu"]
            self.work += output["work"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the CPU time report; with --cpu-record it covers all recorded runs."""
        if hasattr(self.config, "workeroutput"):
            return
        budgets = tomllib.loads(BUDGETS.read_text("utf-8"))
        self.work.append(timed_work())
        scale = budgets["work"] * len(self.work) / sum(self.work)
        own = time.process_time() if self.workers else cpu_seconds()
        between = own + self.workers - sum(self.files.values())
        run = {
            "wall": time.monotonic() - self.began,
            "files": {f: s * scale for f, s in (self.files | {"": between}).items()},
            "long": {
                test: seconds * scale
                for test, seconds in self.unmarked.items()
                if seconds * scale >= budgets["one_test"]
            },
        }
        runs = [run]
        if path := self.config.getoption("cpu_record"):
            with Path(path).open("a+", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
                file.seek(0)
                runs = [json.loads(line) for line in file]
        terminalreporter.section("processor seconds")
        for line in report_lines(budgets, scale, runs, self.config.getoption("budget")):
            terminalreporter.line(line)
