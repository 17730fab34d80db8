"""Jobs of several processes that wait until they are told to work, so that they can take turns.

Each process runs `python -m lsgd.bench.member`. What is measured is driven from here: a request, a
line of JSON, goes to process 0, which tells the others, and its answer comes when all are through.
A job that waits takes no time of the CPU, over torch.distributed.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from lsgd.errors import Refused
from lsgd.job.children import Child, failure, started
from lsgd.job.launcher import cores, detect

PYTHON = sys.executable
LAUNCHERS = {
    "torch": (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
    "horovod": (PYTHON, "-m", "horovod.runner.launch", "--gloo", "-np"),
}
"""What starts the processes of each library; their number comes next."""
FUSION = str(128 * 2**20)
"""Horovod's own HOROVOD_FUSION_THRESHOLD, in bytes, which lsgd.comm.horovod would set to 0."""

LEAVING = 30.0
"""Seconds that a launcher gets to end its processes when one of them has gone."""


class Job:
    """Processes that are up and have met."""

    def __init__(self, name: str, child: Child, connection: socket.socket, limit: float) -> None:
        self.name, self._child, self._limit = name, child, limit
        connection.settimeout(limit)
        self._requests, self._answers = connection.makefile("w"), connection.makefile("r")

    def ask(self, *request: Any) -> Any:
        """What process 0 answers to a request, once all processes are through with it.

        Raises Refused, with one sentence, if they refuse, die or take longer than the limit.
        """
        try:
            print(json.dumps(request), file=self._requests, flush=True)
            line = self._answers.readline()
        except TimeoutError:
            refuse(self.name, self._child, self._limit)
        except ConnectionError:
            line = ""
        if not line:
            self._child.wait(LEAVING)
            refuse(self.name, self._child, self._limit)
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["done"]


@contextmanager
def open_job(
    work: str, library: str, processes: int, words: Sequence[str], *, limit: float
) -> Iterator[Job]:
    """So many processes for a `work` of lsgd.bench.member, with the recipe of these words.

    Raises Refused if they have not met in `limit` seconds. Afterwards all of them have ended.
    """
    name = f"{processes} {'process' if processes == 1 else 'processes'} over {library}"
    threads = max(1, cores(detect()) // processes)
    environment = {"OMP_NUM_THREADS": str(threads), "HOROVOD_FUSION_THRESHOLD": FUSION}
    with TemporaryDirectory(prefix="lsgd-bench-") as folder:
        meeting = Path(folder, "socket")
        python = [PYTHON] * (library == "horovod")
        member = ["-m", "lsgd.bench.member", str(meeting), work, library, *words]
        command = [*LAUNCHERS[library], str(processes), *python, *member]
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(str(meeting))
            except OSError as error:
                raise Refused(
                    f"{folder} is no place for a socket ({error}); write TMPDIR=/tmp before the "
                    "command"
                ) from None
            server.listen()
            with (
                # What the caller has set stays.
                started(command, environment=environment | os.environ) as child,
                _meet(name, child, server, limit) as connection,
            ):
                yield Job(name, child, connection, limit)


def numbers(option: str, text: str, *, least: int) -> list[int]:
    """The numbers of an option such as `--np 2,4`; raises Refused."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise Refused(
            f"{option} {text} is not a list of numbers from {least} on; write for example "
            f"{option} {least},{2 * least}"
        )
    if detect().world_size > 1:
        raise Refused(
            f"{detect().launcher} started {detect().world_size} processes, and this benchmark "
            "starts its own; start it without"
        )
    return list(dict.fromkeys(map(int, words)))


def refuse(name: str, child: Child, limit: float) -> NoReturn:
    """Say in one sentence how a job has failed; it is ended first."""
    code = child.process.poll()
    text = child.stop()
    # What lsgd itself says, and which signal a process died of, launchers bury under their own.
    said = [line.partition("lsgd: ")[2] for line in text.splitlines() if "lsgd: " in line]
    crash = re.search(r"\b(SIG(?:SEGV|ABRT|BUS|FPE|ILL|KILL))\b", text)
    if said:
        why = said[0]
    elif crash and code is not None:
        why = f"a process crashed with {crash[1]}"
    else:
        why = failure(code, text, limit) + "; --limit allows more" * (code is None)
    raise Refused(f"{name}: {why}")


def _meet(name: str, child: Child, server: socket.socket, limit: float) -> socket.socket:
    server.settimeout(0.2)
    begin = time.monotonic()
    while True:
        try:
            return server.accept()[0]
        except TimeoutError:
            if child.process.poll() is not None or time.monotonic() - begin > limit:
                refuse(name, child, limit)
