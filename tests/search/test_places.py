"""Where trials are trained, and how one is told to leave."""

import signal

import pytest

from lsgd.errors import Refused
from lsgd.search.places import Here, SlurmQueue, place_for
from lsgd.search.stop import Stop
from lsgd.trials.launch import TrialLauncher


def test_one_that_is_given_up_twice_is_told_once() -> None:
    """A second signal would kill it before it has saved."""
    received: list[int] = []
    stop = Stop(received)
    assert not stop
    stop.prune()
    stop.prune()
    assert list(stop) == [signal.SIGTERM]
    received.append(signal.SIGINT)
    assert (len(stop), stop[-1]) == (2, signal.SIGINT)
    assert list(Stop(received)) == [signal.SIGINT]


def test_a_cluster_is_asked_and_a_launcher_is_watched() -> None:
    assert isinstance(place_for(TrialLauncher("slurm", {})), SlurmQueue)
    for name in ("local", "ray", "mpirun"):
        assert isinstance(place_for(TrialLauncher(name, {})), Here)
    with pytest.raises(Refused, match="start the search itself in a pod that has the claim"):
        place_for(TrialLauncher("k8s", {}))
