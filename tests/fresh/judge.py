"""Runner of a command on a pseudo-terminal, which judges its output, timing and exit code."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROWS, COLUMNS = 40, 100
AS_EXPECTED = "as expected"
TRACEBACK = "Traceback (most recent call last)"
"""The text that no new user may see."""
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class CommandOutcome:
    """The output, the exit code and the duration of a command."""

    code: int | None
    """The exit code, or None for a command that was ended at its limit."""
    text: str
    seconds: float
    moments: tuple[float, ...] = ()
    """The seconds after its start at which it printed something, in order."""

    @property
    def first(self) -> float:
        """The seconds until it first printed something, or until it ended."""
        return min((*self.moments, self.seconds))

    @property
    def silence(self) -> float:
        """The longest time in which it printed nothing, in seconds."""
        return max(b - a for a, b in pairwise((0, *self.moments, self.seconds)))

    def verdict(self, expects: str, code: int = 0) -> str:
        """Return AS_EXPECTED, or the difference and the last printed line other than make's."""
        text = plain(self.text)
        if self.code is None:
            differs = f"not finished after {self.seconds:.0f} s"
        elif self.code != code:
            differs = f"exit code {self.code}, not {code}"
        elif expects not in text:
            differs = f"no {expects!r} in its output"
        elif TRACEBACK in text:
            differs = "a traceback in its output"
        else:
            return AS_EXPECTED
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("make: ***")]
        return f"{differs}: {lines[-1]}" if lines else f"{differs}, and nothing printed"

    @property
    def downloaded(self) -> float:
        """The bytes of the files that pip reports as downloads, without those from its cache."""
        found = re.findall(r"Downloading \S+ \(([\d.]+) ([kMG]?)B\)", plain(self.text))
        return sum(float(number) * UNITS[unit] for number, unit in found)


def plain(text: str) -> str:
    """Return a terminal's text without colours and overwritten lines.

    >>> plain("\\x1b[32m10 %\\r\\x1b[K100 %\\x1b[0m done\\r\\n")
    '100 % done\\n'
    """
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
    return re.sub(r"[^\n]*\r(?=[^\n])", "", text).replace("\r", "")


def run_on_terminal(command: Sequence[str], log: Path, limit: float) -> CommandOutcome:
    """Run a command until it ends or reaches the limit in seconds; write its output to the log."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    begin = time.monotonic()
    moments: list[float] = []
    code = None
    # The terminal controls the command's session, so all its processes end if this program dies.
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, start_new_session=True,
        preexec_fn=_take_terminal,
    ) as process:  # fmt: skip
        os.close(its)
        try:
            with log.open("wb") as file:
                for chunk in _chunks(ours, begin + limit):
                    moments.append(time.monotonic() - begin)
                    file.write(chunk)
                    file.flush()
            code = process.wait(max(0, begin + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            os.close(ours)
    seconds = time.monotonic() - begin
    return CommandOutcome(
        code, log.read_bytes().decode("utf-8", "replace"), seconds, tuple(moments)
    )


def _take_terminal() -> None:
    """Make standard input's terminal the controlling one, so that this process ends with it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored below nohup


def _chunks(terminal: int, end: float) -> Iterator[bytes]:
    """Yield what is printed on a terminal, until no process has it open or the end is reached."""
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                yield os.read(terminal, 1 << 16)
            except OSError:  # on Linux the error means that no process has the terminal open
                return
