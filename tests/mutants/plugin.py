"""Plugin of pytest for `make mutants`, which records the lines of tests or runs selected tests.

With $MUTANTS_RECORD, a file, it saves the lines of each test there in coverage.py's format, and in
a file beside it, with the suffix .json, the processor seconds of each test, or null if it does not
pass, and the shared set-ups that each uses. A shared set-up is a fixture of a wider scope than one
test, or a call of a function with `functools.cache`: it runs in the first test that needs it, but
its lines belong to all tests that use its result.

With $MUTANTS_TESTS, a JSON object of tests and their seconds, it runs only these in that order, and
kills one that takes many times as long. The file beside it with the suffix .last has the name of
the test that started last.
"""

import functools
import json
import os
import resource
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
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
        self.seconds: dict[str, float | None] = {}
        self.uses: dict[str, set[str]] = {}
        """The shared set-ups that each test, or each other shared set-up, uses."""
        self.context = ""
        self.tree = Path.cwd()
        self.coverage = coverage.Coverage(
            data_file=str(file), source=["lsgd"], config_file=False, messages=False
        )
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()  # before conftest.py imports lsgd
        self.cache = functools.cache
        functools.cache = self._recorded_cache

    @contextmanager
    def within(self, context: str) -> Iterator[None]:
        """Record lines for this context, a test or a shared set-up, within the with statement."""
        outer, self.context = self.context, context
        self.coverage.switch_context(context)
        try:
            yield
        finally:
            self.context = outer
            self.coverage.switch_context(outer)

    def _recorded_cache(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(function, FunctionType) or self.tree not in (
            Path(function.__code__.co_filename).parents  # else it is of a library
        ):
            return self.cache(function)

        def name(*args: Any, **named: Any) -> str:
            key = hash((args, *named.items()))
            return f"call {function.__module__}.{function.__qualname__} {key}"

        @self.cache
        def compute(*args: Any, **named: Any) -> Any:
            with self.within(name(*args, **named)):
                return function(*args, **named)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if not self.context:  # at import, whose lines every test of the file has
                return function(*args, **named)
            self.uses.setdefault(self.context, set()).add(name(*args, **named))
            return compute(*args, **named)

        vars(call).update(cache_clear=compute.cache_clear, cache_info=compute.cache_info)
        return call

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        if request.scope == "function":
            return (yield)
        with self.within(f"fixture {fixturedef.argname} of {request.node.nodeid}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        begin = _taken()
        self.passed = []
        with self.within(item.nodeid):
            done = yield
        passes = self.passed == [True] * 3
        self.seconds[item.nodeid] = _taken() - begin if passes else None
        names = getattr(item, "fixturenames", ())
        self.uses.setdefault(item.nodeid, set()).update(
            f"fixture {name} of {node.nodeid}" for name in names for node in item.listchain()
        )
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed.append(report.passed)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        found = {"seconds": self.seconds, "uses": {k: sorted(v) for k, v in self.uses.items()}}
        self.file.with_suffix(".tmp").write_text(json.dumps(found))
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
