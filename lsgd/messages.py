"""The messages of a run, which go through `logging`, to the logger "lsgd".

By default they are printed as a command prints them, on stdout and without a prefix. Another
program silences them by `logging.getLogger("lsgd").setLevel(logging.WARNING)`, or removes the
logger's handler and sets `propagate` to have them in its own log.
"""

import logging
import sys

LOGGER = logging.getLogger("lsgd")


class _ConsoleHandler(logging.Handler):
    """A handler that prints each message on a line of stdout, or of stderr where it says so."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message; an error of the stream ends the run, as one of print does."""
        stream = sys.stderr if getattr(record, "on_stderr", False) else sys.stdout
        print(record.getMessage(), file=stream, flush=True)


def show(text: str, *, level: int = logging.INFO, on_stderr: bool = False) -> None:
    """Log a message of a run, to be printed on stdout, or on stderr if `on_stderr` is true."""
    LOGGER.log(level, "%s", text, extra={"on_stderr": on_stderr}, stacklevel=2)


# Not of a reloaded module a second time, nor instead of what a program chose before the import.
if not LOGGER.handlers:
    LOGGER.addHandler(_ConsoleHandler())
    LOGGER.propagate = False  # the log of a program around would repeat each message
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.INFO)
