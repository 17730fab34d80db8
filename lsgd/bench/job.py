"""Jobs of several processes that wait until they are told to work, so that they can take turns.

Each process runs a module that ends in lsgd.bench.member's main. What is measured is driven from
here: a request, a line of JSON, goes to process 0, which tells the others, and its answer comes
when all are through. A job that waits takes no time of the CPU, over torch.distributed. A job of
one process without a launcher is what has its memory to itself.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TextIO

from lsgd.errors import Refused
from lsgd.job.children import Child, failure, started
from lsgd.job.launcher import cores, detect

FUSION = str(128 * 2**20)
"""Horovod's own HOROVOD_FUSION_THRESHOLD, in bytes, which lsgd.comm.horovod would set to 0."""

LEAVING = 30.0
"""Seconds that a launcher gets to end its processes when one of them has gone."""


class Job:
    """Processes that are up and have met."""

    def __init__(self, name: str, child: Child, stream: TextIO, limit: float) -> None:
        self.name, self._child, self._stream, self._limit = name, child, stream, limit

    def prepare(self, setting: Any) -> Any:
        """Prepare a setting on all processes; returns what process 0 says about it.

        Raises Refused, with one sentence, if they refuse, die or take longer than the limit.
        """
        return self._ask("prepare", setting)

    def run(self, candidate: str, argument: int) -> Any:
        """Run a candidate on all processes, to its end on all; returns what process 0 returns.

        Raises Refused as prepare does.
        """
        return self._ask("run", candidate, argument)

    def _ask(self, *request: Any) -> Any:
        try:
            print(json.dumps(request), file=self._stream, flush=True)
            line = self._stream.readline()
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
    module: str,
    library: str,
    processes: int,
    words: Sequence[str],
    *,
    limit: float,
    environment: Mapping[str, str] = {},
) -> Iterator[Job]:
    """A job of processes of a module, with the recipe of these words, over a library of lsgd.comm.

    Raises Refused if they have not met in `limit` seconds, which is also the limit of each request.
    Afterwards all of them have ended. What the caller's environment has goes before `environment`.
    """
    name = f"{processes} {'process' if processes == 1 else 'processes'} over {library}"
    if library == "single":
        name = "a process of its own"
    threads = max(1, cores(detect()) // processes)
    ours = {"OMP_NUM_THREADS": str(threads), "HOROVOD_FUSION_THRESHOLD": FUSION}
    with open_command(
        name,
        [*python(library, processes), "-m", module],
        [library, *words],
        environment={**ours, **environment},
        limit=limit,
    ) as job:
        yield job


@contextmanager
def open_command(
    name: str,
    command: Sequence[str],
    words: Sequence[str],
    *,
    environment: Mapping[str, str] = {},
    limit: float,
) -> Iterator[Job]:
    """The job of a command whose further words are the address of a socket and then `words`.

    Raises Refused as open_job does. What the caller's environment has goes before `environment`.
    """
    with TemporaryDirectory(prefix="lsgd-bench-") as folder:
        address = Path(folder, "socket")
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(str(address))
            except OSError as error:
                raise Refused(
                    f"{folder} is no place for a socket ({error}); write TMPDIR=/tmp before the "
                    "command"
                ) from None
            server.listen()
            with (
                # What the caller has set stays.
                started(
                    [*command, str(address), *words], environment={**environment, **os.environ}
                ) as child,
                _meet(name, child, server, limit) as connection,
                connection.makefile("rw") as stream,
            ):
                connection.settimeout(limit)
                yield Job(name, child, stream, limit)


def python(library: str, processes: int) -> list[str]:
    """The words that start Python in the processes of a job of this library."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    horovodrun = ["-m", "horovod.runner.launch", "--gloo", "-np", str(processes), sys.executable]
    launchers = {"single": [], "torch": torchrun, "horovod": horovodrun}
    return [sys.executable, *launchers[library]]


def numbers(option: str, text: str, *, least: int) -> list[int]:
    """The numbers, each once, of an option such as `--np 2,4`; raises Refused."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise Refused(
            f"{option} {text} is not a list of numbers from {least} on; write for example "
            f"{option} {least},{2 * least}"
        )
    return list(dict.fromkeys(map(int, words)))


def refuse(name: str, child: Child, limit: float) -> NoReturn:
    """End a job that has failed, and raise Refused with the reason in one sentence."""
    code = child.process.poll()
    text = child.stop()
    # Launchers bury lsgd's own sentence, and the signal of a crash, under messages of their own.
    sentences = [line.partition("lsgd: ")[2] for line in text.splitlines() if "lsgd: " in line]
    crash = re.search(r"\b(SIG(?:SEGV|ABRT|BUS|FPE|ILL|KILL))\b", text)
    if sentences:
        why = sentences[0]
    elif crash and code is not None:
        why = f"a process crashed with {crash[1]}"
    else:
        why = failure(code, text, limit)
        if code is None:
            why += "; --limit, where there is one, allows more"
    if "SIGKILL" in why:
        why += ", which is mostly for lack of memory"
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
