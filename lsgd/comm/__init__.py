"""Communication between the processes of one job, over a choice of libraries."""

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import local
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

# Not `import torch`: once comm/torch.py is imported, that name is the submodule here.
from torch import (
    AcceleratorError,
    OutOfMemoryError,
    Tensor,
    distributed,
    get_num_threads,
    set_num_threads,
)
from torch import device as Device

from lsgd.errors import ExitError, PeerLostError, TrainingInterrupted, UsageError
from lsgd.installation import script_command
from lsgd.job.device import device_count, device_name
from lsgd.job.launcher import Launch, cores, detect_launch, omp_num_threads
from lsgd.job.system import usable_cores
from lsgd.job.threads import choose_threads
from lsgd.recipe import CommSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lsgd.comm.pair import ProcessPair

T = TypeVar("T")


TIMED_OUT = 0.9
"""The share of comm.timeout after which a loss counts as the timeout of all processes.

The first one that times out closes its connections, by which others notice just before they do.
"""


class _WaitTime(local):
    """The seconds that a thread has spent in calls of a communication library."""

    seconds = 0.0


_wait_time = _WaitTime()


class Comm(Protocol):
    """Communicator of the processes of one job, as seen by the process of this `rank`."""

    library: str
    """Description of the communication library, for messages."""
    rank: int
    world_size: int

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Start an all-reduce that replaces the tensor, in place, by its sum over the processes.

        The returned function waits for it. All processes start the same sums in the same order;
        `name` is equal on all of them, and no two pending sums have the same name.
        """

    def broadcast_object(self, value: T) -> T:
        """Broadcast the value that process 0 passes, and return it on every process."""

    def gather_objects(self, value: T) -> list[T]:
        """Gather the values that all processes pass; return them in rank order on every process."""

    def close(self) -> None:
        """Leave the job together with all processes; raise PeerLostError if one left earlier."""


@runtime_checkable
class MessagingComm(Comm, Protocol):
    """Communicator with point-to-point messages between processes, from CPU to CPU.

    Several messages may be under way from one process to another, with different tags. Each
    returned function waits for one message.
    """

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Callable[[], None]:
        """Start sending a CPU tensor to a process; it must not change before the send has ended."""

    def start_receive(self, tensor: Tensor, sender: int, tag: int) -> Callable[[], None]:
        """Start receiving a CPU tensor from a process in place, into a tensor of the same size."""


@runtime_checkable
class PairwiseComm(Comm, Protocol):
    """Communicator that can open separate connections between any two processes."""

    def open_pairs(self, wanted: "Sequence[tuple[str, int]]") -> "list[ProcessPair]":
        """Open several two-process connections, each given by its name and this end's side.

        Other processes open the other ends meanwhile. Sides are 0 and 1; one process may open both.
        All processes call it. Raises PeerLostError if the process of another end does not join in
        time.
        """


@runtime_checkable
class ElasticComm(PairwiseComm, Protocol):
    """Communicator of an elastic job, whose processes may restart while others continue."""

    process: int
    """Number of this process, which stays the same; its rank is its place in the current group."""
    restart_count: int
    """Number of restarts of this process."""
    is_outside_group: bool
    """Whether this process has restarted and is not in the current group yet."""

    def answer_restarted(self, answer: Callable[[], object]) -> None:
        """Make process 0 answer each query of a restarted process by a call of `answer`.

        A call that returns None is repeated until it returns something else.
        """

    def query_process_0(self) -> Any:
        """Ask process 0, from this restarted process, which of its checkpoints to continue from."""

    def publish(self, name: str, value: T) -> T:
        """Return the value that process 0 passes, also to processes that restart later."""

    def wait_for_restart(self, process: int, after: int) -> int:
        """Wait until a process has restarted more often than `after`; return its restart count.

        Raises RuntimeError at the end of the job.
        """

    def open_pair(self, name: str, side: int) -> "ProcessPair":
        """Open a two-process connection by its name, which the other process opens meanwhile."""

    def form_group(self, name: str, members: list[tuple[int, int]] | None) -> None:
        """Form a new process group of these members, unless it equals the current one.

        Members are pairs of a process and its restart count. One process passes them; the others
        pass None and receive them under this name.
        """


@runtime_checkable
class RollCallComm(Comm, Protocol):
    """Communicator whose processes find out, when all time out, which of them are silent."""

    def call_roll(self) -> str:
        """Return which processes have not timed out as this one has, in words for a message.

        All processes call it that can, at about the same time; it takes some seconds.
        """


def open_comm(settings: CommSettings, device: Device) -> Comm:
    """Join the launcher's processes over the configured library; return their communicator.

    It is `settings.library`, or chosen for `auto`. Processes that have not joined after
    `join_timeout` seconds give up; later, a process that does not respond for `timeout` seconds
    counts as lost. Processes that the program has connected itself are used, and stay connected.
    Raises UsageError if the library does not suit the launcher, or sees another number of them.
    """
    launch = detect_launch()
    library = settings.library
    chosen = choose_library(launch, device) if library == "auto" else library
    comm = _open(chosen, launch, device, settings)
    if comm.world_size != launch.world_size:
        comm.close()
        raise UsageError(
            f"{launch.launcher} started {launch.world_size} processes but {comm.library} sees "
            f"{comm.world_size}: every process would train alone; {_remedy(chosen, launch)}"
        )
    if not omp_num_threads():
        set_num_threads(cores(launch))
    return comm


def comm_over(group: object = None) -> Comm:
    """Return a communicator of processes that this program has connected itself.

    `group` is a process group of torch.distributed, or a Comm. None means all processes: those of
    torch.distributed if it is initialised, of Horovod if that is, or else this process alone.
    Raises UsageError if a launcher started several processes that are not connected.
    """
    if hasattr(group, "start_all_reduce_"):
        return cast(Comm, group)
    if distributed.is_available() and distributed.is_initialized():
        from lsgd.comm.group import GroupComm

        comm = GroupComm(cast("distributed.ProcessGroup | None", group))
        if comm.rank < 0:
            raise UsageError(
                f"process {distributed.get_rank()} is not in group={group!r}; pass its own group, "
                "or leave it out"
            )
        return comm
    if group is not None:
        raise UsageError(
            f"group={group!r} is not a process group of torch.distributed, which is not "
            "initialised; call torch.distributed.init_process_group first, or leave it out"
        )
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        from lsgd.comm.horovod import InitialisedHorovodComm

        return InitialisedHorovodComm()
    launch = detect_launch()
    if launch.world_size > 1:
        raise UsageError(
            f"{launch.launcher} started {launch.world_size} processes that are not connected, and "
            "each would train alone; call torch.distributed.init_process_group or Horovod's init "
            "first"
        )
    from lsgd.comm.single import SingleComm

    return SingleComm()


@contextmanager
def joined(settings: CommSettings, device: Device) -> Iterator[Comm]:
    """Open a communicator of the launcher's processes, and close it at the end of the context.

    All processes close it together, since NCCL waits for all of them without a limit. A process
    that fails alone leaves it open and raises its error at once; run_command then ends the process,
    by which the others notice.
    """
    comm = open_comm(settings, device)
    try:
        yield comm
    except BaseException as error:
        if isinstance(error, ExitError):
            error.has_joined = True
        if comm.world_size == 1:
            comm.close()
        elif isinstance(error, PeerLostError) and error.waited >= TIMED_OUT * settings.timeout:
            if isinstance(comm, RollCallComm) and (silent := comm.call_roll()):
                raise PeerLostError(f"no answer from {silent}: {error}") from None
        elif isinstance(
            error, TrainingInterrupted
        ):  # all processes have saved the same step, and exit
            with suppress(PeerLostError):
                comm.close()
        elif isinstance(error, ExitError) and not error.is_local:
            try:
                comm.close()
            except PeerLostError:
                error.is_local = True
        raise
    comm.close()


def choose_library(launch: Launch, device: Device) -> str:
    """Choose the library of comm=auto: Horovod if built for launcher and device, else torch."""
    match launch.launcher:
        case "none":
            return "single"
        case "torchrun":
            return "torch"
        case launcher:
            return "horovod" if _horovod_suits(launcher, device) else "torch"


def describe(comm: Comm, device: Device, *, threads: int | str | None = None) -> str:
    """Return a log line on this job's processes, library, device, threads and idle GPUs.

    `threads` is the recipe's number of CPU threads, or None if it follows from the micro-batches.
    """
    launch = detect_launch()
    line = "1 process" if comm.world_size == 1 else f"{comm.world_size} processes"
    if launch.launcher != "none":
        line += f" by {launch.launcher} over {comm.library}"
    hardware = "CPU" if device.type == "cpu" else device_name(device)
    line += f", {hardware}, threads per process: {get_num_threads()}"
    most = choose_threads(None, cores(launch))
    if device.type == "cpu" and threads is None and get_num_threads() < most:
        line += " (micro-batches this small have no work for more)"
    bound, all_ = len(usable_cores()), os.cpu_count()
    if bound != all_:
        line += f" (bound to {bound} of {all_} cores)"
    if device.type == "cpu":
        return line
    gpus = device_count(device)
    if gpus > launch.local_size:
        line += f"; {gpus - launch.local_size} GPUs stay idle: torchrun --nproc-per-node {gpus}"
    return line


RERUN = "the checkpoint is intact, so rerun the same command with its run_dir to resume"
"""The fix in the message of a lost process of a job that lsgd runs itself."""
RESTART = "start all processes of the program again, from its last checkpoint"
"""The fix in the message of a lost process of a program that has connected its own processes."""


@contextmanager
def communicating(
    *errors: type[Exception], fix: str = RERUN, of_all: bool = False
) -> Iterator[None]:
    """Time a call of a communication library, and convert these errors of it into PeerLostError.

    `fix` ends the message of that error. `of_all` says that all processes make this call together.
    """
    begin = perf_counter()
    try:
        yield
    except (OutOfMemoryError, AcceleratorError):
        raise  # subclasses of RuntimeError, but errors of this process itself
    except errors as error:
        why = plain_first_line(str(error) or type(error).__name__).partition(". ")[0]
        lost = PeerLostError(
            f"another process has exited, or the network has failed ({why}); its own message "
            f"says why; {fix}"
        )
        if of_all:
            lost.waited = math.inf if "Timed out" in why else perf_counter() - begin
        raise lost from None
    finally:
        _wait_time.seconds += perf_counter() - begin


def plain_first_line(message: str) -> str:
    """Return the first line of a library's error message, without places in its source.

    >>> plain_first_line("failed with [/w/gloo/pair.cc:537] Read error [10.0.0.2]:37585: reset\\n")
    'failed with Read error [10.0.0.2]:37585: reset'
    """
    return re.sub(r"\[\S+\.(cc|cpp|h):\d+\] ", "", message.strip().partition("\n")[0])


def seconds_waited() -> float:
    """Return the seconds that this thread has spent in calls of a communication library so far.

    Between GPUs a wait for NCCL returns at once and blocks only the device, so it takes no time
    here.
    """
    return _wait_time.seconds


def all_reduce_(comm: Comm, tensor: Tensor) -> None:
    """Replace a tensor, in place, by its sum over the processes, and wait for it."""
    comm.start_all_reduce_(tensor, "sum")()


def all_or_raise(comm: Comm, action: Callable[[], T]) -> T:
    """Run the action on every process; raise the first UsageError of any process on all."""
    refusal, result = None, None
    try:
        result = action()
    except UsageError as error:
        who = f"process {comm.rank}{detect_launch().on_host}: " if comm.rank else ""
        refusal = f"{who}{error}"
    if refusals := [text for text in comm.gather_objects(refusal) if text]:
        raise UsageError(refusals[0])
    return result  # type: ignore[return-value]


def broadcast_from_rank0(comm: Comm, action: Callable[[], T]) -> T:
    """Run the action on process 0; return its result, or raise its UsageError, on all processes."""
    outcome: tuple[T | None, str | None] = (None, None)
    if comm.rank == 0:
        try:
            outcome = action(), None
        except UsageError as error:
            outcome = None, str(error)
    result, refusal = comm.broadcast_object(outcome)
    if refusal is not None:
        raise UsageError(refusal)
    return result  # type: ignore[return-value]


def _open(library: str, launch: Launch, device: Device, settings: CommSettings) -> Comm:
    timeout, join_timeout = settings.timeout, settings.join_timeout
    match library:
        case "single":
            from lsgd.comm.single import SingleComm

            return SingleComm()
        case "torch":
            from lsgd.comm.torch import OwnGroupComm, TorchComm

            if distributed.is_initialized() and launch.launcher != "none":
                return OwnGroupComm(device=device, timeout=timeout, join_timeout=join_timeout)
            if launch.restart_count is not None and device.type == "cpu":
                from lsgd.comm.elastic import ElasticTorchComm

                return ElasticTorchComm(
                    launch, device=device, timeout=timeout, join_timeout=join_timeout
                )
            if launch.restart_count:
                raise PeerLostError(
                    "this process was restarted and cannot rejoin the others, as groups of GPUs "
                    "cannot be formed anew; rerun the same command to resume the run"
                )
            return TorchComm(launch, device=device, timeout=timeout, join_timeout=join_timeout)
        case "horovod":
            try:
                from lsgd.comm.horovod import HorovodComm, InitialisedHorovodComm, is_initialised
            except ImportError as error:
                raise UsageError(
                    f"comm=horovod, but Horovod cannot be imported ({error}); build it for this "
                    f"torch with {script_command('setup/horovod.sh')}, or write comm=torch"
                ) from None
            if is_initialised():
                return InitialisedHorovodComm()
            return HorovodComm(timeout=timeout, join_timeout=join_timeout)
    raise ValueError(library)


def _horovod_suits(launcher: str, device: Device) -> bool:
    try:
        from lsgd.comm.horovod import is_built_for
    except ImportError:
        return False
    return is_built_for(launcher, device)


def _remedy(library: str, launch: Launch) -> str:
    if library == "single":
        return "write comm=auto, which connects them, or start a single process"
    if library == "horovod" and launch.launcher == "torchrun":
        return "launch with horovodrun or mpirun, or write comm=torch"
    return (
        f"the Horovod installed here is not built for {launch.launcher} (see horovodrun "
        "--check-build); launch with horovodrun, or write comm=torch"
    )
