"""Which machines take part, and the places in the command that stand for them."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lsgd.errors import Refused
from lsgd.job.members import GRACE

NP, HOSTS = "{np}", "{hosts}"
"""In the command: the number of processes, and the hosts with their numbers of processes."""
SSH = 22


def placed(command: Sequence[str], size: int | None, hosts: Mapping[str, int]) -> list[str]:
    """The command with its places filled.

    >>> placed(["mpirun", "-H", "{hosts}", "-np", "{np}"], 12, {"a": 8, "b": 4})
    ['mpirun', '-H', 'a:8,b:4', '-np', '12']
    """
    names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    return [word.replace(NP, str(size)).replace(HOSTS, names) for word in command]


def answering(hosts: Mapping[str, int]) -> dict[str, int]:
    """The hosts that answer on the port of ssh, by which launchers reach them, with their slots.

    Raises Refused if there are some and none does.
    """
    reached = {}
    for host, slots in hosts.items():
        with suppress(OSError), socket.create_connection((host, SSH), timeout=GRACE):
            reached[host] = slots
    if hosts and not reached:
        raise Refused(f"none of --hosts answers on port {SSH}; start sshd there, or write others")
    return reached
