"""Protection of what a command prints, against control characters, closed pipes and full disks."""

import codecs
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lsgd.sanitizing import sanitize_output

PLAINER = str.maketrans({"…": "...", "–": "-", "−": "-", "“": '"', "”": '"', "→": "->", "±": "+-"})
"""The replacements of characters that the output's encoding lacks."""


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by plainer ones, or by backslash escapes."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(PLAINER)
    return lacking.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("lsgd.plainer", _plainer)


def guard_output() -> None:
    """Make standard output and error survive closed readers and full disks, and sanitize them.

    A closed reader is one such as `| head`. Control characters and passwords are replaced as by
    `sanitize_output`. Whatever prints, now or as Python exits, gets no OSError. Output that does
    not fit on the disk is lost, which is reported once on standard error: a message is not worth a
    run.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as by `>&-`
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)
            continue
        binary = getattr(stream, "buffer", None)
        raw = getattr(binary, "raw", binary)
        if isinstance(raw, io.FileIO):
            _go_nowhere_without_a_reader(raw)
        if isinstance(stream, io.TextIOWrapper):
            # A character that the encoding lacks must not end a command.
            with suppress(OSError):  # in a fork, where another file has taken its descriptor
                stream.reconfigure(errors="lsgd.plainer")
            _write_as_printed(stream)


def _write_as_printed(stream: Any) -> None:
    write: Callable[[Any, str], int] = type(stream).write

    def write_printed(text: str) -> int:
        write(stream, sanitize_output(text))
        return len(text)

    stream.write = write_printed


def _go_nowhere_without_a_reader(file: Any) -> None:
    write: Callable[[Any, Any], int | None] = type(file).write
    said = False

    def write_if_possible(data: Any) -> int | None:
        nonlocal said
        try:
            return write(file, data)
        except BrokenPipeError:
            # The descriptor itself, for output that bypasses Python and for later child processes.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file.fileno())
            os.close(nowhere)
            return write(file, data)
        except OSError as error:  # the next message may succeed
            if not said and file.fileno() == 1:
                said = True
                lost = f"lsgd: the output is lost ({error.strerror}); the command continues\n"
                with suppress(OSError):
                    os.write(2, lost.encode())
            return memoryview(data).nbytes

    file.write = write_if_possible
