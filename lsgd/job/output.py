"""What a command prints, once nobody reads it: it goes nowhere, and the command goes on."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def need_no_reader() -> None:
    """Let standard output and error outlive their readers, as `| head` is one.

    Whatever prints there, now or as Python ends, gets no BrokenPipeError.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as `>&-` does
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)
            continue
        binary = getattr(stream, "buffer", None)
        raw = getattr(binary, "raw", binary)
        if isinstance(raw, io.FileIO):
            _go_nowhere_without_a_reader(raw)


def _go_nowhere_without_a_reader(file: Any) -> None:
    write: Callable[[Any, Any], int | None] = type(file).write

    def write_if_read(data: Any) -> int | None:
        with suppress(BrokenPipeError):
            return write(file, data)
        # The descriptor itself, for what is written past Python and by processes yet to start.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
        return write(file, data)

    file.write = write_if_read
