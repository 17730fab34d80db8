"""Plugin of pytest for `make mutants`, which records the lines of tests or runs selected tests.

With $MUTANTS_RECORD, a file, it saves the lines of each test there in coverage.py's format, and in
a file beside it, with the suffix .json, the processor seconds of each test that passes. With
$MUTANTS_TESTS, a JSON object of tests and their seconds, it runs only these, in that order, and
kills one that takes many times as long. The file beside it with the suffix .last has the name of
the test that started last.
"""

import json
import os
import resource
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

HANGS = {signal.ITIMER_PROF: (20, 10), signal.ITIMER_REAL: (180, 60)}
"""The limits of a test by timer: seconds, plus a multiple of its recorded seconds.

One limit is for the processor time of this process, the other for elapsed time, which is larger,
since other programs may have the processor meanwhile.
"""


class LineRecorder:
    """A plugin that records the lines and the processor seconds of each test."""

    def __init__(self, file: Path) -> None:
        import coverage

        self.file = file
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(
            data_file=str(file), source=["lsgd"], config_file=False, messages=False
        )
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()  # before conftest.py imports lsgd

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.switch_context(item.nodeid)
        begin = _taken()
        self.passed = []
        done = yield
        if self.passed == [True] * 3:
            self.seconds[item.nodeid] = _taken() - begin
        self.coverage.switch_context("")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed.append(report.passed)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.file.with_suffix(".tmp").write_text(json.dumps(self.seconds))
        self.file.with_suffix(".tmp").rename(self.file.with_suffix(".json"))  # atomic


class SelectedTests:
    """A plugin that runs selected tests in a given order, with a time limit for each."""

    def __init__(self, file: Path) -> None:
        self.seconds: dict[str, float] = json.loads(file.read_text())
        self.last = file.with_suffix(".last")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self.seconds if name in by_name]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.last.write_text(item.nodeid)
        # Without a handler these signals end the process, whatever it is doing.
        for timer, (more, times) in HANGS.items():
            signal.setitimer(timer, more + times * self.seconds[item.nodeid])
        done = yield
        for timer in HANGS:
            signal.setitimer(timer, 0)
        return done


def pytest_configure(config: pytest.Config) -> None:
    if RECORD:
        config.pluginmanager.register(RECORD)
    if "MUTANTS_TESTS" in os.environ:
        config.pluginmanager.register(SelectedTests(Path(os.environ["MUTANTS_TESTS"])))


def _taken() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


RECORD = (
    LineRecorder(Path(os.environ["MUTANTS_RECORD"])) if "MUTANTS_RECORD" in os.environ else None
)
