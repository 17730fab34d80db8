"""Counts of the files and connections of a start: for a shared file system, and for process 0."""

OPENED = 3100
"""The files of Python, torch and lsgd that a process opens, counted for an image run."""
LOOKED_UP = 45_000
"""The names that a process looks up, with those of folders and of files that do not exist."""
READ_GB = 0.65
"""The size of the opened files, which the processes of a server share once they are in memory."""
ADDRESS_BYTES, CONNECTION_BYTES = 170, 8
"""The bytes of a process's address, and of the number of each of its connections.

Process 0 sends both to each process for each, so that gloo connects all of them. All counts:
results/2026-11-27-many-processes.
"""


def start_line(servers: int, processes: int) -> str:
    """Return a report's sentences on the files and connections of a job's start.

    >>> print(start_line(2, 16))
    Start: 16 processes look up 720 thousand names and open 49.6 thousand files of Python, torch \
and lsgd; 2 servers read 1.3 GB of them, from a shared file system if they are there. Each process \
has 15 connections, and process 0 sends 76.3 kB of addresses (counted with 64 processes).
    """
    looked_up = _rounded(processes * LOOKED_UP, "thousand", "million", "billion")
    opened = _rounded(processes * OPENED, "thousand", "million", "billion")
    read = _rounded(servers * READ_GB * 1e9, "kB", "MB", "GB", "TB")
    reading = "1 server reads" if servers == 1 else f"{servers} servers read"
    address = ADDRESS_BYTES + CONNECTION_BYTES * processes
    addresses = _rounded(processes**2 * address, "kB", "MB", "GB", "TB", "PB")
    return (
        f"Start: {processes} processes look up {looked_up} names and open {opened} files of "
        f"Python, torch and lsgd; {reading} {read} of them, from a shared file system "
        f"if they are there. Each process has {processes - 1} connections, and process 0 sends "
        f"{addresses} of addresses (counted with 64 processes)."
    )


def _rounded(number: float, *units: str) -> str:
    """Format a number with three digits and the largest fitting unit, each 1000 of the one before.

    >>> _rounded(2.95e9, "thousand", "million", "billion")
    '2.95 billion'
    """
    power = max([i for i in range(1, len(units) + 1) if number >= 1000**i], default=1)
    return f"{number / 1000**power:.3g} {units[power - 1]}"
