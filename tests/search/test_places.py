"""Where trials are trained, and how one is told to leave."""

import signal
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd.errors import UsageError
from lsgd.planned import PlannedRun, RunLauncher
from lsgd.search import backends
from lsgd.search.backends import LocalBackend, SlurmBackend, backend_for
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


def test_a_cluster_is_asked_and_a_launcher_is_watched() -> None:
    assert isinstance(backend_for(RunLauncher("slurm", {})), SlurmBackend)
    for name in ("local", "ray", "mpirun"):
        assert isinstance(backend_for(RunLauncher(name, {})), LocalBackend)
    with pytest.raises(UsageError, match="start the search itself in a pod that has the claim"):
        backend_for(RunLauncher("k8s", {}))


def test_a_queue_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a search for that would cost all of its trials."""
    answers = tmp_path / "bin"
    answers.mkdir()
    monkeypatch.setenv("PATH", f"{answers}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backends, "POLL", 0.01)
    asked = tmp_path / "asked"
    (answers / "squeue").write_text(
        f"#!/bin/sh\necho >> {asked}\n[ $(wc -l < {asked}) -gt 3 ] || "
        "{ echo Socket timed out >&2; exit 1; }\n"
    )
    (answers / "squeue").chmod(0o755)
    trial = PlannedRun(compose_recipe("+recipe=digits"), [])
    trial.job_path.parent.mkdir(parents=True)
    trial.job_path.write_text("Submitted batch job 6\n")
    assert backends._queued(trial) is None
    assert asked.read_text().count("\n") == 4
    monkeypatch.setattr(backends, "PATIENCE", 0)
    asked.write_text("")
    with pytest.raises(UsageError, match="squeue fails: Socket timed out"):
        backends._queued(trial)
