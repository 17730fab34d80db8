"""Machines that do not answer are left out."""

import socket

import pytest

from lsgd.errors import UsageError
from lsgd.supervise import hosts as machines


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
