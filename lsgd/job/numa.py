"""The cores next to a GPU, to which its process may keep.

On a machine of two sockets, memory and GPU of the other socket are further away: images that a
process decodes there cross over on their way.
"""

import os
from pathlib import Path
from typing import Any

DEVICES = Path("/sys/bus/pci/devices")


def pci_address(properties: Any) -> str:
    """The address of a GPU on the PCI bus, as Linux writes it, from torch's properties of it."""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}.0"
    )


def bind(address: str) -> set[int]:
    """Bind this process, and whatever it starts, to the cores next to the device of this address,
    as far as it may use them; returns those it has from then on.

    It stays as it is where the system does not say which they are, or none of them is allowed.
    """
    allowed = os.sched_getaffinity(0)
    try:
        near = parse_cores((DEVICES / address / "local_cpulist").read_text())
    except (OSError, ValueError):
        return allowed
    if not near & allowed:
        return allowed
    os.sched_setaffinity(0, near & allowed)
    return near & allowed


def parse_cores(text: str) -> set[int]:
    """The cores in a list of Linux's; raises ValueError if it is none.

    >>> sorted(parse_cores("0-3,8,10-11"))
    [0, 1, 2, 3, 8, 10, 11]
    """
    cores: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
