"""What becomes of the memory that a process frees."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: the free memory from which on some goes back to the system, and the size
from which on a block is the system's own."""
MOST = 2**31 - 1
"""The largest value of a parameter."""


def keep_freed() -> None:
    """Let glibc keep what is freed for the next step, which needs as much again.

    As it comes, glibc gives large blocks back and gets them anew, page by page: in each step of
    ResNet-50 on 32 images of 224 x 224 a million page faults, without which it takes 0.86 times as
    long. What is kept is not always of the size that is asked for next: the peak is 1.12 times that
    (results/2026-11-23-kept-memory). Nothing changes where the environment decides (MALLOC_…,
    GLIBC_TUNABLES), and with another library of C.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(TRIM_THRESHOLD, MOST)
        library.mallopt(MMAP_THRESHOLD, MOST)
