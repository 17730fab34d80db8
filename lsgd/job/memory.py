"""What becomes of the memory that a process frees."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: the free memory from which on some goes back to the system, and the size
from which on a block is the system's own."""
NEVER, LARGEST = 2**31 - 1, 2**26
"""Their values, in bytes: no amount of free memory is enough; 64 MiB."""


def keep_freed() -> None:
    """Let glibc keep what is freed for the next step, which needs as much again.

    As it comes, glibc gives blocks back and gets them anew, page by page: 44 thousand page faults
    in a step of ResNet-50 on 32 images of 64 x 64, of which 53 are left. Blocks of 64 MiB and more
    stay the system's own, since what is kept is not always of the size that is asked for next: at
    224 x 224 a step takes 0.77 times as long with 1.12 times the peak, and would take 0.71 times
    with 1.16 times the peak if all were kept (results/2026-11-25-heap). Nothing changes where the
    environment decides (MALLOC_…, GLIBC_TUNABLES), and with another library of C.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(TRIM_THRESHOLD, NEVER)
        library.mallopt(MMAP_THRESHOLD, LARGEST)
