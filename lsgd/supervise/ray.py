"""A launcher over Ray, which places every process, and starts it again if it dies:

    python -m lsgd.supervise.ray N -- COMMAND ...

It joins the Ray at RAY_ADDRESS, or starts one of its own on this machine, and ends that. Each of N
actors has one process of the job, as a child with torchrun's numbers, so that tensors go as they do
under any other launcher; Ray carries what the processes print. An actor that is killed, or whose
machine is lost, is restarted by Ray; what follows for its process is in `lsgd.supervise.lives`.
"""

import os
import secrets
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from subprocess import PIPE
from threading import Event, Lock
from typing import Any

from lsgd.errors import Refused
from lsgd.installation import install
from lsgd.job.command import run_alone
from lsgd.job.launcher import Launch, environment_of
from lsgd.supervise.lives import WAKE, read_lives, run_lives
from lsgd.supervise.seat import Seat
from lsgd.supervise.signals import catch_stop_signals
from lsgd.supervise.singly import free_port

STORE = 10**8
"""Bytes of Ray's object store, which only carries what processes print."""
PLACING = 120.0
"""Seconds in which Ray has to have found a place for every process."""
FULL_PIPE = 1 << 20
"""Bytes that a pipe holds at most, unless root has made it larger (pipe(7))."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""The variable in which Ray shows a process the GPUs that are its own."""


class RaySeat:
    """The place of one process in an actor; a restarted one has the same name."""

    def __init__(self, command: Sequence[str], name: str) -> None:
        self.seat = Seat(command, name)

    def place(self) -> tuple[str, int]:
        """The address of this machine, and a free port there."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def run(self, folder: str, environment: Mapping[str, str]) -> Iterator[bytes | int]:
        """Run the process in this folder: yields what it prints, and in the end its exit code."""
        try:
            os.chdir(folder)
        except OSError as error:
            raise Refused(
                f"{folder} is no folder on {os.uname().nodename}, to which Ray has sent a process "
                f"({error.strerror}); start in one that all machines see"
            ) from None
        own = {name: os.environ[name] for name in [GPUS] if name in os.environ}
        process = self.seat.start({**environment, **own}, output=PIPE)
        if process is None:
            yield -signal.SIGTERM
            return
        assert process.stdout
        with process.stdout:
            output, end = process.stdout.fileno(), os.pidfd_open(process.pid)
            os.set_blocking(output, False)  # what it has started may keep the pipe open after it
            over = False
            while not over:
                # Looked at before the pipe, where all that it has printed is once it is over.
                over = end in select.select([output, end], [], [])[0]
                with suppress(BlockingIOError):
                    if not (chunk := os.read(output, FULL_PIPE)):
                        break
                    yield chunk
            os.close(end)
        yield process.wait()

    def send(self, number: int) -> None:
        """Send the process a signal; from now on no other is started here."""
        self.seat.send(number)

    def clear(self) -> None:
        """End what the process has left behind."""
        self.seat.clear()


class RaySeats:
    """The places of all processes of a job, as Ray has chosen them."""

    def __init__(self, ray: Any, size: int, command: Sequence[str]) -> None:
        self.ray, self.folder = ray, os.getcwd()
        self.environment = {name: value for name, value in os.environ.items() if name != GPUS}
        actor = ray.remote(RaySeat).options(
            num_cpus=1,
            num_gpus=_gpus_each(ray, size, command),
            max_restarts=-1,
            max_concurrency=2,  # a signal while the process runs
        )
        self.actors = [actor.remote(command, uuid.uuid4().hex) for _ in range(size)]
        try:
            places = ray.get([actor.place.remote() for actor in self.actors], timeout=PLACING)
        except ray.exceptions.GetTimeoutError:
            raise Refused(
                f"Ray has not found a place for {size} processes within {PLACING:g} s; see with "
                "`ray status` what is taken, or write a smaller --np"
            ) from None
        self.machines = [machine for machine, _ in places]
        self.master_addr, self.master_port = places[0]
        self._writing, self._ending = Lock(), Event()

    def run(self, rank: int, life: int) -> int:
        """Run this process to its end; returns its exit code, negative for a signal.

        An actor that died counts as killed, and before the next life Ray has brought it back.
        """
        if life and not self._is_back(rank):
            return -signal.SIGTERM
        environment = self.environment | environment_of(self._launch(rank, life))
        try:
            for reference in self.actors[rank].run.remote(self.folder, environment):
                item: bytes | int = self.ray.get(reference)
                if isinstance(item, int):
                    return item
                with self._writing:
                    sys.stdout.buffer.write(item)
                    sys.stdout.buffer.flush()
        except self.ray.exceptions.RayActorError:
            pass
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return -signal.SIGKILL

    def send(self, number: int) -> None:
        """Send every process a signal; from now on none is started."""
        self._ending.set()
        for actor in self.actors:
            with suppress(self.ray.exceptions.RayError):
                actor.send.remote(number)

    def clear(self) -> None:
        """End what the processes have left behind."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.get([actor.clear.remote() for actor in self.actors], timeout=PLACING)

    def _is_back(self, rank: int) -> bool:
        """Wait until Ray has the actor again, on whichever machine; False if the job ends first."""
        while not self._ending.is_set():
            with suppress(self.ray.exceptions.RayActorError):
                self.machines[rank], _ = self.ray.get(self.actors[rank].place.remote())
                return True
            time.sleep(WAKE)
        return False

    def _launch(self, rank: int, life: int) -> Launch:
        machine = self.machines[rank]
        neighbours = [other for other, place in enumerate(self.machines) if place == machine]
        return Launch(
            "torchrun",
            rank,
            len(self.machines),
            neighbours.index(rank),
            len(neighbours),
            self.master_addr,
            self.master_port,
            life,
        )


def _gpus_each(ray: Any, size: int, command: Sequence[str]) -> int:
    """The GPUs of each process: one where Ray has any; raises Refused if they are too few.

    The cores are those of machines that Ray has joined, and have to be as many as the processes.
    """
    there = ray.cluster_resources()
    gpus = 1 if there.get("GPU") and "device=cpu" not in command else 0
    for kind, each in (("CPU", 1), ("GPU", gpus)):
        if (count := int(there.get(kind, 0))) < size * each:
            raise Refused(
                f"{size} processes take a {kind} each, and Ray has {count}; write --np {count}"
                + (", or device=cpu" if kind == "GPU" else "")
            )
    return gpus


def _begin(size: int) -> Any:
    """Ray, joined at RAY_ADDRESS or else started for so many processes; raises Refused without it.

    The one that is started has a token of its own: it listens on all networks, and runs whatever it
    is sent.
    """
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex()}
        settings |= {"address": "local", "include_dashboard": False, "object_store_memory": STORE}
        settings["num_cpus"] = max(size, os.cpu_count() or 1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to Ray's makers
    try:
        import ray
    except ImportError:
        raise Refused(f"Ray is not installed; type {install('ray')}") from None
    try:
        ray.init(**settings)
    except ConnectionError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[-1]
        raise Refused(
            f"no Ray can be joined at RAY_ADDRESS={address} ({cause[:200]}); see with `ray status` "
            "that it runs, or unset RAY_ADDRESS, and one is started here"
        ) from None
    return ray


def run_over_ray(argv: Sequence[str]) -> int:
    """Run the command of these words to its end; returns the exit code of the job."""
    size, command = read_lives("lsgd.supervise.ray", __doc__ or "", argv)
    ray = _begin(size)
    try:
        signals = catch_stop_signals()  # after Ray, which takes one for itself
        seats = RaySeats(ray, size, command)
        try:
            return run_lives(seats, size, command, signals)
        finally:
            seats.clear()
    finally:
        ray.shutdown()


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: run_over_ray(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
