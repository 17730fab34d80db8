"""The network of this machine: its interfaces, its hostname, and the problems they may have."""

import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TORCHRUN_HERE = ("--standalone", "--local-addr", "127.0.0.1")
"""The options of torchrun for a job on this machine.

Without --local-addr the processes wait until the machine's name resolves.
"""

UP = 1
"""The bit in an interface's flags that says it is up: IFF_UP of the C library."""


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface of this machine, such as eth0, with its state and IP addresses."""

    name: str
    up: bool
    addresses: tuple[str, ...]

    @property
    def loopback(self) -> bool:
        """Whether the network interface is the loopback, which other machines cannot reach."""
        return any(ipaddress.ip_address(each).is_loopback for each in self.addresses)

    def __str__(self) -> str:
        return f"{self.name} {self.addresses[0] if self.addresses else 'without an address'}"


class Hostname(NamedTuple):
    """The name of this machine, and the addresses that it resolves to, if any."""

    name: str
    addresses: Sequence[str]


class NetworkProblem(NamedTuple):
    """A network misconfiguration that keeps processes from connecting, and its fix."""

    finding: str
    fix: str


class _InterfaceAddress(ctypes.Structure):
    """The first fields of C's struct ifaddrs, which are equal on Linux and the BSDs."""


_InterfaceAddress._fields_ = [
    ("next", ctypes.POINTER(_InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def list_interfaces() -> list[NetworkInterface]:
    """Return this machine's network interfaces, with addresses, IPv4 first; raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_InterfaceAddress)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "the network interfaces cannot be listed")
    addresses: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    up = set()
    try:
        entry = first
        while entry:
            name = os.fsdecode(entry.contents.name).partition(":")[0]  # an alias has a label
            addresses.setdefault(name, []).extend(_address(entry.contents.address))
            if entry.contents.flags & UP:
                up.add(name)
            entry = entry.contents.next
    finally:
        library.freeifaddrs(first)
    return [NetworkInterface(name, name in up, tuple(own)) for name, own in addresses.items()]


def _address(sockaddr: int | None) -> list[str]:
    """Decode C's struct sockaddr into a list of its IP address; empty for other families."""
    if sockaddr is None:
        return []
    family = ctypes.string_at(sockaddr, 2)
    # On the BSDs the length of the structure comes first, and the family has one byte.
    match int.from_bytes(family, sys.byteorder) if sys.platform == "linux" else family[1]:
        case socket.AF_INET:
            return [socket.inet_ntop(socket.AF_INET, ctypes.string_at(sockaddr + 4, 4))]
        case socket.AF_INET6:
            return [socket.inet_ntop(socket.AF_INET6, ctypes.string_at(sockaddr + 8, 16))]
    return []


def hostname() -> Hostname:
    """Resolve this machine's hostname, which takes seconds where a name server does not answer."""
    name = socket.gethostname()
    try:
        records = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        records = []
    return Hostname(name, list(dict.fromkeys(str(record[4][0]) for record in records)))


def external_interface(found: Sequence[NetworkInterface]) -> NetworkInterface | None:
    """Return the first network interface at which other machines can reach this one, or None."""
    usable = (each for each in found if each.up and each.addresses and not each.loopback)
    return next(usable, None)


def hostname_interface(
    host: Hostname, found: Sequence[NetworkInterface]
) -> NetworkInterface | None:
    """Return the network interface to whose address this machine's hostname resolves, or None."""
    own = (each for each in found if set(each.addresses) & set(host.addresses))
    if chosen := next(own, None):
        return chosen
    # The whole of 127.0.0.0/8 is lo's; Debian gives the hostname 127.0.1.1.
    if host.addresses and ipaddress.ip_address(host.addresses[0]).is_loopback:
        return next((each for each in found if each.loopback), None)
    return None


def hostname_problem(host: Hostname, found: Sequence[NetworkInterface]) -> NetworkProblem | None:
    """Return why processes cannot connect by the name of this machine; None if they can.

    With such a problem Horovod's Gloo crashes, whichever interface it is given, and torchrun waits
    for minutes.
    """
    if hostname_interface(host, found):
        return None
    finding = f"the hostname {host.name} does not resolve"
    if host.addresses:
        finding = f"{host.name} resolves to {host.addresses[0]}, which no interface here has"
    return NetworkProblem(finding, hosts_file_fix(host, found))


def hosts_file_fix(host: Hostname, found: Sequence[NetworkInterface]) -> str:
    """Return advice to map this machine's name to its external address in /etc/hosts."""
    other = external_interface(found)
    address = other.addresses[0] if other else "127.0.0.1"
    return f"write `{address} {host.name}` into /etc/hosts"


def loopback_problem(found: Sequence[NetworkInterface]) -> NetworkProblem | None:
    """Return why processes of this machine cannot connect at 127.0.0.1; None if they can."""
    if any("127.0.0.1" in each.addresses for each in found):
        return None
    return NetworkProblem("no interface here has the address 127.0.0.1", "`ip link set lo up`")
