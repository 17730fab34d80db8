"""The cores next to a GPU, to which its process may be bound.

On a machine with two sockets, memory and GPUs of the other socket are further away: images decoded
there cross over on their way to the GPU.
"""

from pathlib import Path
from typing import Any

from lsgd.job.system import bind_to, usable_cores

DEVICES = Path("/sys/bus/pci/devices")


def pci_address(properties: Any) -> str:
    """Format a GPU's PCI address as Linux writes it, from torch's device properties."""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}.0"
    )


def bind_near_device(address: str) -> set[int]:
    """Bind this process to the CPU cores nearest to a PCI device; return the cores that it may use.

    Only cores that the process may use count. It stays unbound where the system does not say which
    are near, or none of them is allowed.
    """
    allowed = usable_cores()
    try:
        near = parse_cores((DEVICES / address / "local_cpulist").read_text())
    except (OSError, ValueError):
        return allowed
    if not near & allowed:
        return allowed
    bind_to(near & allowed)
    return near & allowed


def parse_cores(text: str) -> set[int]:
    """Parse a Linux CPU list, such as 0-3,8, into core numbers; raise ValueError for other text.

    >>> sorted(parse_cores("0-3,8,10-11"))
    [0, 1, 2, 3, 8, 10, 11]
    """
    cores: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
