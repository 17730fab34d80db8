"""The hosts that take part in a job, and the placeholders for them in its command."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lsgd.errors import UsageError
from lsgd.job.ending import GRACE

NP, HOSTS = "{np}", "{hosts}"
"""The placeholders in a command: the number of processes, and the hosts with their numbers."""
SSH = 22


def fill_placeholders(
    command: Sequence[str], size: int | None, hosts: Mapping[str, int]
) -> list[str]:
    """Replace {np} and {hosts} in a launch command by the number of processes and the hosts.

    >>> fill_placeholders(["mpirun", "-H", "{hosts}", "-np", "{np}"], 12, {"a": 8, "b": 4})
    ['mpirun', '-H', 'a:8,b:4', '-np', '12']
    """
    names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    return [word.replace(NP, str(size)).replace(HOSTS, names) for word in command]


def reachable_hosts(hosts: Mapping[str, int]) -> dict[str, int]:
    """Return the hosts, with their process counts, that answer on ssh's port, as launchers use ssh.

    Raises UsageError if hosts are given and none answers.
    """
    reached = {}
    for host, slots in hosts.items():
        with suppress(OSError), socket.create_connection((host, SSH), timeout=GRACE):
            reached[host] = slots
    if hosts and not reached:
        raise UsageError(
            f"no host of --hosts answers on port {SSH}; start sshd there, or write other hosts"
        )
    return reached
