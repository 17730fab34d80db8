"""Machines that do not answer are left out."""

import socket
from pathlib import Path

import pytest

from lsgd.errors import UsageError
from lsgd.supervise import loop as machines
from lsgd.supervise.__main__ import read
from lsgd.supervise.loop import supervise_job


def test_a_lost_machine_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two addresses of this machine stand for two machines; one of them no longer answers."""
    here = socket.create_server(("127.0.0.1", 0))
    port = here.getsockname()[1]
    monkeypatch.setattr(machines, "SSH", port)
    hosts = {"127.0.0.1": 2, "127.0.0.2": 3}
    with here:
        with socket.create_server(("127.0.0.2", port)):
            assert machines.reachable_hosts(hosts) == hosts
        assert machines.reachable_hosts(hosts) == {"127.0.0.1": 2}
    with pytest.raises(UsageError, match="no host of --hosts answers"):
        machines.reachable_hosts(hosts)


def test_the_machines_that_answer_are_too_few_for_the_minimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would start more processes on them than they are given for."""
    started = tmp_path / "started"
    options = ["--hosts", "127.0.0.1:8,127.0.0.2:8", "--min-processes", "12"]
    command = ["touch", str(started), f"run_dir={tmp_path / 'run'}", "{hosts}", "{np}"]
    monkeypatch.setattr("lsgd.supervise.loop.catch_stop_signals", list)
    with socket.create_server(("127.0.0.1", 0)) as here:
        monkeypatch.setattr(machines, "SSH", here.getsockname()[1])
        with pytest.raises(
            UsageError, match=r"12 is more than the 8 .* on 127\.0\.0\.2, or write 8"
        ):
            supervise_job(read([*options, *command]))
    assert not started.exists()
    assert "no answer from 127.0.0.2" in (tmp_path / "run" / "supervise.log").read_text()
