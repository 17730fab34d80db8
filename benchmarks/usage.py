"""Resource usage of a process, read from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""The clock ticks per second in which the kernel counts, mostly 100."""


@dataclass(frozen=True)
class Usage:
    """The resource usage of a process: all its threads, ended ones too, but not its children."""

    user_seconds: float
    system_seconds: float
    page_faults: int
    """Minor page faults: pages that it got without reading a disk."""

    @property
    def cpu_seconds(self) -> float:
        """The CPU seconds in user and in system mode."""
        return self.user_seconds + self.system_seconds


def usage(pid: int) -> Usage:
    """Return the usage of a process so far; raise OSError if there is none with this pid."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text())


def parse_stat(stat: str) -> Usage:
    """Parse the usage from the content of a /proc/PID/stat, documented in proc_pid_stat(5).

    >>> parse_stat("7 (a (b) c) S 1 2 3 4 5 6 70 8 9 10 1100 50 13").page_faults
    70
    """
    # The program's name, in parentheses, may have blanks and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    return Usage(int(fields[11]) / TICKS, int(fields[12]) / TICKS, int(fields[7]))
