"""A test that takes long and does not say so fails: it would make the short run a long one."""

import resource
from collections.abc import Generator

import pytest

CPU_SECONDS = 5.0
"""What a test may take, unless a mark says more: with the fixtures that it is the first to ask for,
and the processes that it has started and waited for."""
LONGER = ("slow", "distributed", "soak", "gpu")

_began = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    """What this process has taken so far, and those that it has started and waited for."""
    taken = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in taken)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Note when the test begins."""
    item.stash[_began] = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make the end of a test a failure, if it took too long."""
    report = yield
    if report.when == "teardown" and not any(map(item.get_closest_marker, LONGER)):
        taken = _cpu_seconds() - item.stash[_began]
        if taken >= CPU_SECONDS:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {taken:.1f} CPU seconds, and a test without a mark may take "
                f"{CPU_SECONDS:g}: make it shorter, or mark it slow"
            )
    return report
