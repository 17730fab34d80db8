"""Benchmark jobs of several processes, which wait for requests so that jobs can take turns.

Each process runs a module that ends in lsgd.bench.job_process's main. The benchmark sends a
request, a line of JSON, to process 0, which broadcasts it to the others; the reply comes when all
have finished. A waiting job over torch.distributed uses no CPU time. A job of one process without a
launcher measures its memory separately from that of the benchmark.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TextIO

from lsgd.errors import UsageError
from lsgd.job.children import Child, describe_failure, running_child
from lsgd.job.launcher import cores, detect_launch
from lsgd.job.network import TORCHRUN_HERE

FUSION = str(128 * 2**20)
"""Horovod's default HOROVOD_FUSION_THRESHOLD in bytes, which lsgd.comm.horovod would set to 0."""

EXIT_TIMEOUT = 30.0
"""Seconds that a launcher has to end its processes after one of them has exited."""


class Job:
    """A running benchmark job, whose processes have connected to each other."""

    def __init__(self, name: str, child: Child, stream: TextIO, limit: float) -> None:
        self.name, self._child, self._stream, self._limit = name, child, stream, limit
        self._failure = ""
        """The message of the request at which the job died or exceeded the limit."""

    def prepare(self, setting: Any) -> Any:
        """Prepare a benchmark's setting on all processes and return the reply of process 0.

        Raises UsageError, with one sentence, if they refuse, die or exceed the time limit, and the
        same sentence at every request after the last two.
        """
        return self._ask("prepare", setting)

    def run(self, candidate: str, argument: int) -> Any:
        """Run a candidate to its end and return process 0's result; raises as prepare does."""
        return self._ask("run", candidate, argument)

    def _ask(self, *request: Any) -> Any:
        if self._failure:
            raise UsageError(self._failure)
        try:
            line = self._exchange(json.dumps(request))
        except UsageError as failure:
            self._failure = str(failure)
            raise
        answer = json.loads(line)
        if "refused" in answer:
            raise UsageError(answer["refused"])
        return answer["done"]

    def _exchange(self, request: str) -> str:
        """Send a line to process 0 and return its reply; raise UsageError without one."""
        try:
            print(request, file=self._stream, flush=True)
            line = self._stream.readline()
        except TimeoutError:
            raise_job_error(self.name, self._child, self._limit)
        except ConnectionError:
            line = ""
        if not line:
            self._child.wait(EXIT_TIMEOUT)
            raise_job_error(self.name, self._child, self._limit)
        return line


@contextmanager
def open_job(
    module: str,
    library: str,
    processes: int,
    overrides: Sequence[str],
    *,
    limit: float,
    environment: Mapping[str, str] = {},
) -> Iterator[Job]:
    """Start a benchmark job of several processes that run a module over a library of lsgd.comm.

    Raises UsageError if they have not connected within `limit` seconds, which is also the limit of
    each request. All processes have ended when the context exits. Variables of the caller's
    environment take precedence over `environment`.
    """
    name = f"{processes} {'process' if processes == 1 else 'processes'} over {library}"
    if library == "single":
        name = "a separate process"
    threads = max(1, cores(detect_launch()) // processes)
    ours = {"OMP_NUM_THREADS": str(threads), "HOROVOD_FUSION_THRESHOLD": FUSION}
    with open_command(
        name,
        [*python_command(library, processes), "-m", module],
        [library, *overrides],
        environment={**ours, **environment},
        limit=limit,
    ) as job:
        yield job


@contextmanager
def open_command(
    name: str,
    command: Sequence[str],
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] = {},
    limit: float,
) -> Iterator[Job]:
    """Start a benchmark job from a command that takes the address of a socket and `arguments`.

    Raises UsageError as open_job does. Variables of the caller's environment take precedence over
    `environment`.
    """
    with TemporaryDirectory(prefix="lsgd-bench-") as folder:
        address = Path(folder, "socket")
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(str(address))
            except OSError as error:
                raise UsageError(
                    f"{folder} cannot hold a socket ({error}); write TMPDIR=/tmp before the command"
                ) from None
            server.listen()
            with (
                # The caller's variables take precedence.
                running_child(
                    [*command, str(address), *arguments], environment={**environment, **os.environ}
                ) as child,
                _meet(name, child, server, limit) as connection,
                open_stream(connection) as stream,
            ):
                connection.settimeout(limit)
                yield Job(name, child, stream, limit)


@contextmanager
def open_stream(connection: socket.socket) -> Iterator[TextIO]:
    """Open a connection as a text stream, which closes even if the peer has died.

    A request that could not be sent is still in the stream, and closing it sends it again.
    """
    stream = connection.makefile("rw")
    try:
        yield stream
    finally:
        with suppress(ConnectionError):
            stream.close()


def python_command(library: str, processes: int) -> list[str]:
    """Return the command that starts Python on several processes, by a library's launcher."""
    count = str(processes)
    torchrun = ["-m", "torch.distributed.run", *TORCHRUN_HERE, "--nproc-per-node", count]
    horovodrun = ["-m", "horovod.runner.launch", "--gloo", "--disable-cache", "-np", count]
    launchers = {"single": [], "torch": torchrun, "horovod": [*horovodrun, sys.executable]}
    return [sys.executable, *launchers[library]]


def parse_numbers(option: str, text: str, *, least: int) -> list[int]:
    """Parse a list such as 2,4 into distinct numbers of `least` or more, or raise UsageError."""
    items = text.split(",")
    if not all(word.isdecimal() and int(word) >= least for word in items):
        raise UsageError(
            f"{option} {text} is not a list of numbers of {least} or more; write for example "
            f"{option} {least},{2 * least}"
        )
    return list(dict.fromkeys(map(int, items)))


def raise_job_error(name: str, child: Child, limit: float) -> NoReturn:
    """Stop a failed benchmark job and raise UsageError with the reason in one sentence."""
    code = child.process.poll()
    text = child.stop()
    # Launchers print lsgd's sentence, and the signal of a crash, among messages of their own.
    sentences = [line.partition("lsgd: ")[2] for line in text.splitlines() if "lsgd: " in line]
    crash = re.search(r"\b(SIG(?:SEGV|ABRT|BUS|FPE|ILL|KILL))\b", text)
    if sentences:
        why = sentences[0]
    elif crash and code is not None:
        why = f"a process crashed with {crash[1]}"
    else:
        why = describe_failure(code, text, limit)
        if code is None:
            why += "; raise --limit if the command has it"
    if "SIGKILL" in why:
        why += ", mostly because it is out of memory"
    raise UsageError(f"{name}: {why}")


def _meet(name: str, child: Child, server: socket.socket, limit: float) -> socket.socket:
    server.settimeout(0.2)
    begin = time.monotonic()
    while True:
        try:
            return server.accept()[0]
        except TimeoutError:
            if child.process.poll() is not None or time.monotonic() - begin > limit:
                raise_job_error(name, child, limit)
