"""What a process of this machine has used so far, as /proc has it."""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""Parts of a second in which the kernel counts, mostly 100."""


@dataclass(frozen=True)
class Usage:
    """What a process has used with all its threads, those that have ended too; its children not."""

    user_seconds: float
    system_seconds: float
    page_faults: int
    """Pages that it got without reading a disk: minor faults."""

    @property
    def cpu_seconds(self) -> float:
        """The CPU seconds, in the program and in the system for it."""
        return self.user_seconds + self.system_seconds


def usage(pid: int) -> Usage:
    """What the process has used until now; raises OSError if there is none of this number."""
    return parsed(Path(f"/proc/{pid}/stat").read_text())


def parsed(stat: str) -> Usage:
    """The usage that is in the content of a /proc/PID/stat, of which proc_pid_stat(5) has a table.

    >>> parsed("7 (a (b) c) S 1 2 3 4 5 6 70 8 9 10 1100 50 13").page_faults
    70
    """
    # The name of the program, in parentheses, may have blanks and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    return Usage(int(fields[11]) / TICKS, int(fields[12]) / TICKS, int(fields[7]))
