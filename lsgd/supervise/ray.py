"""Launch a job over Ray, which places every process, and restarts one that dies.

    python -m lsgd.supervise.ray N -- COMMAND ...

It joins the Ray cluster at RAY_ADDRESS, or starts one on this machine and shuts it down at the end.
Each of N actors runs one process of the job as a child with torchrun's environment variables, so
that tensors are sent as under any other launcher; Ray carries the output of the processes. Ray
restarts an actor that is killed, or whose machine is lost; `lsgd.supervise.restarts` describes what
follows for its process.
"""

import os
import secrets
import select
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from subprocess import PIPE
from threading import Event, Lock
from typing import Any

from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.job.command import run_alone
from lsgd.job.launcher import Launch, environment_of
from lsgd.job.system import watch_process
from lsgd.supervise import catch_stop_signals
from lsgd.supervise.process_slot import ProcessSlot
from lsgd.supervise.restarts import WAKE, parse_launcher_arguments, run_with_restarts
from lsgd.supervise.singly import free_port

STORE = 10**8
"""The bytes of Ray's object store, which only carries the processes' output."""
PLACING = 120.0
"""The seconds within which Ray has to place every process."""
FULL_PIPE = 1 << 20
"""The maximum bytes in a pipe, unless root has made it larger (pipe(7))."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""The variable by which Ray assigns GPUs to a process."""


class RayProcessSlot(ProcessSlot):
    """A Ray actor that runs one process of a job; a restarted actor has the same slot name."""

    def place(self) -> tuple[str, int]:
        """Return the address of the machine that runs this actor, and a free TCP port there."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def run(self, folder: str, environment: Mapping[str, str]) -> Iterator[bytes | int]:
        """Run the process in this working directory; yield its output and at last its exit code."""
        try:
            os.chdir(folder)
        except OSError as error:
            raise UsageError(
                f"{folder} is not a folder on {os.uname().nodename}, where Ray placed a process ("
                f"{error.strerror}); start in a folder that all machines share"
            ) from None
        own = {name: os.environ[name] for name in [GPUS] if name in os.environ}
        process = self.start({**environment, **own}, output=PIPE)
        if process is None:
            yield -signal.SIGTERM
            return
        assert process.stdout
        with process.stdout:
            output, end = process.stdout.fileno(), watch_process(process.pid)
            os.set_blocking(output, False)  # its children may keep the pipe open after its end
            over = False
            while not over:
                # Checked before the pipe is read, which has all output once the process is over.
                over = end in select.select([output, end], [], [])[0]
                with suppress(BlockingIOError):
                    if not (chunk := os.read(output, FULL_PIPE)):
                        break
                    yield chunk
            os.close(end)
        yield process.wait()


class RayProcessSlots:
    """The Ray actors that run all processes of a job, one for each rank, as Ray has placed them."""

    def __init__(self, ray: Any, size: int, command: Sequence[str]) -> None:
        self.ray, self.folder = ray, os.getcwd()
        self.environment = {name: value for name, value in os.environ.items() if name != GPUS}
        actor = ray.remote(RayProcessSlot).options(
            num_cpus=1,
            num_gpus=_gpus_each(ray, size, command),
            max_restarts=-1,
            max_concurrency=2,  # a signal while the process runs
        )
        self.actors = [actor.remote(command, uuid.uuid4().hex) for _ in range(size)]
        try:
            places = ray.get([actor.place.remote() for actor in self.actors], timeout=PLACING)
        except ray.exceptions.GetTimeoutError:
            raise UsageError(
                f"Ray could not place {size} processes within {PLACING:g} s; check `ray status` "
                "for what is in use, or write a smaller --np"
            ) from None
        self.machines = [machine for machine, _ in places]
        self.master_addr, self.master_port = places[0]
        self._writing, self._ending = Lock(), Event()

    def run(self, rank: int, restart_count: int) -> int:
        """Run this rank's process to its end; return its exit code, negative for a signal.

        An actor that died counts as killed. Before a restart this waits until Ray has restarted the
        actor.
        """
        if restart_count and not self._is_back(rank):
            return -signal.SIGTERM
        environment = self.environment | environment_of(self._launch(rank, restart_count))
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
        """Send a signal to every process of the job, and start no more processes."""
        self._ending.set()
        for actor in self.actors:
            with suppress(self.ray.exceptions.RayError):
                actor.send.remote(number)

    def clear(self) -> None:
        """End all processes that the job's processes have left running."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.get([actor.clear.remote() for actor in self.actors], timeout=PLACING)

    def _is_back(self, rank: int) -> bool:
        """Wait until Ray has restarted this rank's actor; return False if the job ends first."""
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
    """Return how many GPUs each process takes, 1 or 0; raise UsageError if Ray has too few.

    The number of cores matters on a cluster that was joined: it has to be at least that of the
    processes.
    """
    there = ray.cluster_resources()
    gpus = 1 if there.get("GPU") and "device=cpu" not in command else 0
    for kind, each in (("CPU", 1), ("GPU", gpus)):
        if (count := int(there.get(kind, 0))) < size * each:
            raise UsageError(
                f"{size} processes take a {kind} each, and Ray has {count}; write --np {count}"
                + (", or device=cpu" if kind == "GPU" else "")
            )
    return gpus


def _begin(size: int) -> Any:
    """Join the Ray cluster at RAY_ADDRESS, or start one for `size` processes; return Ray's module.

    Raises UsageError without Ray. A started Ray gets a token of its own, since it listens on all
    networks and runs whatever it is sent.
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
        raise UsageError(f"Ray is not installed; run {install_command('ray')}") from None
    try:
        ray.init(**settings)
    except ConnectionError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[-1]
        raise UsageError(
            f"no Ray cluster can be joined at RAY_ADDRESS={address} ({cause[:200]}); check with "
            "`ray status` that it runs, or unset RAY_ADDRESS to start one here"
        ) from None
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        raise UsageError(
            f"the path {tempfile.gettempdir()} is too long for Ray's sockets; write TMPDIR=/tmp "
            "before the command"
        ) from None
    return ray


def run_over_ray(argv: Sequence[str]) -> int:
    """Run a job over Ray, restarting its dead processes; return the exit code of the job."""
    size, command = parse_launcher_arguments("lsgd.supervise.ray", __doc__ or "", argv)
    ray = _begin(size)
    try:
        signals = catch_stop_signals()  # after ray.init, which installs a handler of its own
        seats = RayProcessSlots(ray, size, command)
        try:
            return run_with_restarts(seats, size, command, signals)
        finally:
            seats.clear()
    finally:
        ray.shutdown()


def main(argv: Sequence[str]) -> int:
    """Run the command line of the Ray launcher; return its exit code."""
    return run_alone(lambda: run_over_ray(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
