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
    monkeypatch.setattr(machines, "_ssh_address", lambda host: (host, port))
    hosts = {"127.0.0.1": 2, "127.0.0.2": 3}
    with here:
        with socket.create_server(("127.0.0.2", port)):
            assert machines.reachable_hosts(hosts) == hosts
        assert machines.reachable_hosts(hosts) == {"127.0.0.1": 2}
    assert machines.reachable_hosts(hosts) == {}


def test_the_machines_that_answer_are_too_few_for_the_minimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would start more processes on them than they are given for."""
    started = tmp_path / "started"
    options = ["--hosts", "127.0.0.1:8,127.0.0.2:8", "--min-processes", "12"]
    command = ["touch", str(started), f"run_dir={tmp_path / 'run'}", "{hosts}", "{np}"]
    monkeypatch.setattr("lsgd.supervise.loop.catch_stop_signals", list)
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        monkeypatch.setattr(machines, "_ssh_address", lambda host: (host, port))
        with pytest.raises(
            UsageError, match=r"12 is more than the 8 .* on 127\.0\.0\.2, or write 8"
        ):
            supervise_job(read([*options, *command]))
    assert not started.exists()
    assert "no answer from 127.0.0.2" in (tmp_path / "run" / "supervise.log").read_text()


def test_an_outage_of_the_network_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what ended the job, so that no machine may answer at first.

    The job starts on those that do then: another question might have no answer again.
    """
    answers = iter([{"a": 2}, {}, {}, {"a": 2}, {}])
    monkeypatch.setattr(machines, "reachable_hosts", lambda _: next(answers))
    monkeypatch.setattr(machines, "PAUSE", 0)
    monkeypatch.setattr("lsgd.supervise.loop.catch_stop_signals", list)
    options = ["--hosts", "a:2", "--restarts", "1"]
    command = ["bash", "-c", "echo {np} {hosts}; exit 5", f"run_dir={tmp_path / 'run'}"]
    assert supervise_job(read([*options, *command])) == 1
    said = (tmp_path / "run" / "supervise.log").read_text()
    assert said.count("no answer from a; asking again") == 1
    assert "--restarts 1 is reached" in said
    assert next(answers) == {}
    answers = iter([{"a": 2}, {}])
    monkeypatch.setattr(machines, "OUTAGE", 0)
    assert supervise_job(read([*options, *command])) == 1
    assert "not restarted: no host of --hosts" in (tmp_path / "run" / "supervise.log").read_text()


def test_the_address_of_a_host_is_that_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    # With -G it says its settings, else it ends as a host that is reached, or is not.
    settings = "printf 'hostname n1.cluster\\nport 2222\\nproxyjump %s\\n' $JUMP"
    ssh.write_text(f"#!/bin/sh\n[ $1 = -G ] || exit $CODE\n{settings}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JUMP", "none")
    assert machines._ssh_address("me@n1") == ("n1.cluster", 2222)
    monkeypatch.setenv("JUMP", "gate")
    assert machines._ssh_address("me@n1") is None
    monkeypatch.setenv("CODE", "0")
    assert machines.reachable_hosts({"me@n1": 3}) == {"me@n1": 3}
    monkeypatch.setenv("CODE", "255")
    assert machines.reachable_hosts({"me@n1": 3}) == {}
    ssh.unlink()
    assert machines._ssh_address("me@n1") == ("n1", 22)
