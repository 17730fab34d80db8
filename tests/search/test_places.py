"""Where trials are trained, and how one is told to leave."""

import signal

import pytest

from lsgd.errors import UsageError
from lsgd.planned import RunLauncher
from lsgd.search.backends import LocalBackend, backend_for
from lsgd.search.trial import StopRequest


def test_one_that_is_given_up_twice_is_told_once() -> None:
    """A second signal would kill it before it has saved."""
    received: list[int] = []
    stop = StopRequest(received)
    assert not stop
    stop.prune()
    stop.prune()
    assert list(stop) == [signal.SIGTERM]
    received.append(signal.SIGINT)
    assert (len(stop), stop[-1]) == (2, signal.SIGINT)
    assert list(StopRequest(received)) == [signal.SIGINT]


def test_a_launcher_is_watched_and_jobs_on_kubernetes_are_not() -> None:
    for name in ("local", "ray", "mpirun"):
        assert isinstance(backend_for(RunLauncher(name, {})), LocalBackend)
    with pytest.raises(UsageError, match="start the search itself in a pod that has the claim"):
        backend_for(RunLauncher("k8s", {}))
