"""Other processes that may crash or hang: waited for so long, and nothing of them left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Event
from typing import Any

MARK = "LSGD_DOCTOR"
"""Environment variable by which all that a child starts is found, whatever group it has moved to:
mpirun and horovodrun give their processes groups and sessions of their own."""
RUN = uuid.uuid4().hex
GRACE = 3.0
"""Seconds that a process has between SIGTERM and SIGKILL."""

_children = count()
_closed = Event()


@dataclass(frozen=True)
class Answer:
    """What a probe found, or why it could not."""

    facts: dict[str, Any]
    why: str = ""
    """Empty if it ended well; else what happened to it, in words."""


def ask(
    probe: str,
    *arguments: str,
    limit: float,
    launcher: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] = {},
) -> Answer:
    """Run a function of lsgd.doctor.probe in a process of its own, or in those of a launcher."""
    with TemporaryDirectory(prefix="lsgd-doctor-") as folder:
        told = Path(folder, "answer.json")
        program = ["-m", "lsgd.doctor.probe", str(told), str(limit), probe, *arguments]
        code, text = finished([*launcher, *program], limit=limit, environment=environment)
        facts = json.loads(told.read_text()) if told.exists() else {}
    if why := facts.pop("error", ""):
        return Answer(facts, why)
    return Answer(facts, _why(code, text, limit) if code != 0 or not facts else "")


def finished(
    command: Sequence[str], *, limit: float, environment: Mapping[str, str] = {}
) -> tuple[int | None, str]:
    """Exit code of a command, None if it was not through in `limit` seconds, and what it printed.

    When this returns or raises, the command and all that it has started have ended.
    """
    mark = f"{RUN}-{next(_children)}-"
    with TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                env=os.environ | environment | {MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches the doctor alone
            )
        except OSError as error:
            return 127, f"{command[0]}: {error.strerror}"
        code: int | None = None
        try:
            if not _closed.is_set():
                code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(mark)
            process.kill()
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def close() -> None:
    """End every process that was started; what a thread is just about to start ends at once."""
    _closed.set()
    end(RUN)


def end(mark: str) -> None:
    """End every process whose mark begins like this: first with SIGTERM, then with SIGKILL."""
    begin = time.monotonic()
    asked: set[int] = set()
    while marked := _marked(mark):
        late = time.monotonic() - begin > GRACE
        for pid in marked if late else marked - asked:
            try:
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            except ProcessLookupError:
                continue
        asked |= marked
        time.sleep(0.05)


def _marked(mark: str) -> set[int]:
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is somebody else's
        if any(word.startswith(wanted) for word in words):
            found.add(int(folder.name))
    return found


def _why(code: int | None, text: str, limit: float) -> str:
    """How a process failed, from its exit code and what it printed."""
    said = telling_line(text)
    if code is not None and code >= 0:
        return said or f"it ended with exit code {code} and said nothing"
    how = f"it did not end in {limit:g} s"
    if code is not None:
        how = f"it crashed with {signal.Signals(-code).name}"
    return f"{how} ({said})" if said else how


def telling_line(text: str) -> str:
    """The line of a program's output that says why it failed: a crash, an exception, or the first.

    Of several the earliest, since launchers add an exception of their own.
    """
    # Without what horovodrun and torch's C++ parts put in front.
    lines = [
        re.sub(r"^(\[\d+\]<std\w+>:|\[[IWEF]\d+ [^]]*\]|\s)+", "", x) for x in text.splitlines()
    ]
    for telling in (
        r"Segmentation fault|Aborted|Bus error",
        r"[\w.]*(Error|Exception)\b",
        r".*[a-z]",
    ):
        for each in lines:
            if re.match(telling, each):
                return each.strip()[:160]
    return ""
