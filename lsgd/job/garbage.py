"""Python's search for garbage while a command is still being imported: it is put off.

An import of torch makes a million objects that stay, and Python would look through them again and
again for those that only circles keep: a sixth of the time until the imports are over.
"""

import gc


def put_off() -> None:
    """From now on no garbage is looked for."""
    gc.disable()


def look_again() -> None:
    """From now on garbage is looked for again, if put_off has changed that, but not among what is
    there by now, which no import makes anew."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
