"""Deferral of Python's garbage collection while a command is still importing.

An import of torch makes a million objects that stay, and Python would scan them again and again for
reference cycles: a sixth of the import time.
"""

import gc


def defer_gc() -> None:
    """Disable Python's garbage collection until enable_gc is called."""
    gc.disable()


def enable_gc() -> None:
    """Enable garbage collection again after defer_gc, and exempt all present objects from it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
