"""The processes of one job, and the library they talk over."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

# Not `import torch`: once comm/torch.py is imported, that name in here is the submodule.
from torch import AcceleratorError, OutOfMemoryError, Tensor, cuda, get_num_threads, set_num_threads
from torch import device as Device

from lsgd.errors import EndsEarly, Interrupted, PeerLost, Refused
from lsgd.installation import script
from lsgd.job.launcher import Launch, cores, detect
from lsgd.job.threads import choose_threads
from lsgd.recipe import CommSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lsgd.comm.pair import Pair

T = TypeVar("T")


class Comm(Protocol):
    """The processes of one job, of which this is number `rank`."""

    library: str
    """The library that carries the sums, in words."""
    rank: int
    world_size: int

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Begin to replace the tensor, in place, by its sum over the processes.

        The returned function waits for it. All processes start the same sums in the same order;
        `name` is the same for all and no two sums of one name are under way at once.
        """

    def broadcast_object(self, value: T) -> T:
        """The value that process 0 has, on every process."""

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks, on every process."""

    def close(self) -> None:
        """Leave the job, as all its processes do now; raises PeerLost if one has left before."""


@runtime_checkable
class Messenger(Comm, Protocol):
    """A Comm whose processes also send each other tensors, from the CPU to the CPU.

    Many may be under way at once, from one process to another with different tags; each of the
    returned functions waits for one.
    """

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Callable[[], None]:
        """Begin to send a tensor, which is not to be changed before it has been waited for."""

    def start_receive(self, tensor: Tensor, sender: int, tag: int) -> Callable[[], None]:
        """Begin to replace a tensor, in place, by one of the same size from the sender."""


@runtime_checkable
class Pairing(Comm, Protocol):
    """A Comm any two of whose processes can have a connection of their own."""

    def open_pairs(self, wanted: "Sequence[tuple[str, int]]") -> "list[Pair]":
        """The connections of these names, whose other ends other processes open meanwhile, or this
        one itself, each as the other side: 0 or 1. All processes call it. Raises PeerLost if an
        other end does not come."""


@runtime_checkable
class Living(Pairing, Protocol):
    """A Comm whose processes may be lost and come back while the others go on."""

    process: int
    """The number of this process; its rank is its place in the group of the moment."""
    life: int
    """How many times it has come back."""
    outside: bool
    """Whether it has come back since all have met."""

    def welcome(self, answer: Callable[[], object]) -> None:
        """From now on let process 0 answer so what a process asks that comes back."""

    def wait_for_life(self, process: int, after: int) -> int:
        """Wait until a process is back in a later life than this one; returns which. Raises
        RuntimeError at the end of the job."""

    def open_pair(self, name: str, side: int) -> "Pair":
        """The connection of this name, whose other end another process opens meanwhile."""

    def meet(self, name: str, members: list[tuple[int, int]] | None) -> None:
        """Make the group anew of these processes and lives, which one of them tells the others
        under this name, if it is not the one that there is."""


def open_comm(settings: CommSettings, device: Device) -> Comm:
    """Join the processes that the launcher started, over `settings.library` (auto chooses).

    Those that have not met after `join_timeout` seconds give up; once they have, one that is silent
    for `timeout` seconds is given up. Raises Refused if the library does not suit the launcher, or
    counts other processes than it.
    """
    launch = detect()
    library = settings.library
    chosen = choose_library(launch, device) if library == "auto" else library
    comm = _open(chosen, launch, device, settings)
    if comm.world_size != launch.world_size:
        comm.close()
        raise Refused(
            f"{launch.launcher} started {launch.world_size} processes but {comm.library} sees "
            f"{comm.world_size}: every process would train alone; {_remedy(chosen, launch)}"
        )
    if "OMP_NUM_THREADS" not in os.environ:
        set_num_threads(cores(launch))
    return comm


@contextmanager
def joined(settings: CommSettings, device: Device) -> Iterator[Comm]:
    """Within this context the processes are joined, as open_comm does; in the end they leave.

    Only together they close the connection, as NCCL waits for all of them then, without a limit.
    One that fails alone leaves it open, says at once what has failed, and is ended by run_command,
    by which the others notice.
    """
    comm = open_comm(settings, device)
    try:
        yield comm
    except BaseException as error:
        if comm.world_size == 1:
            comm.close()
        elif isinstance(error, Interrupted):  # all have saved the same step, and leave
            with suppress(PeerLost):
                comm.close()
        elif isinstance(error, EndsEarly) and not error.here_only:
            try:
                comm.close()
            except PeerLost:
                error.here_only = True
        raise
    comm.close()


def choose_library(launch: Launch, device: Device) -> str:
    """The library of comm=auto: Horovod where it is built for launcher and device, else torch."""
    match launch.launcher:
        case "none":
            return "single"
        case "torchrun":
            return "torch"
        case launcher:
            return "horovod" if _horovod_suits(launcher, device) else "torch"


def describe(comm: Comm, device: Device) -> str:
    """A line on how this job runs; it says how many GPUs stay idle."""
    launch = detect()
    line = "1 process" if comm.world_size == 1 else f"{comm.world_size} processes"
    if launch.launcher != "none":
        line += f" by {launch.launcher} over {comm.library}"
    hardware = "CPU" if device.type == "cpu" else cuda.get_device_name(device)
    line += f", {hardware}, threads per process: {get_num_threads()}"
    if device.type == "cpu" and get_num_threads() < choose_threads(None, cores(launch)):
        line += " (passes this small have no work for more)"
    bound, all_ = len(os.sched_getaffinity(0)), os.cpu_count()
    if bound != all_:
        line += f" (bound to {bound} of {all_} cores)"
    if device.type == "cpu":
        return line
    gpus = cuda.device_count()
    if gpus > launch.local_size:
        line += f"; {gpus - launch.local_size} GPUs stay idle: torchrun --nproc-per-node {gpus}"
    return line


@contextmanager
def with_peers(*errors: type[Exception]) -> Iterator[None]:
    """Make these errors of a communication library say what they mean: PeerLost."""
    try:
        yield
    except (OutOfMemoryError, AcceleratorError):
        raise  # RuntimeErrors too, but of this process
    except errors as error:
        why = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        raise PeerLost(
            f"another process has left the job, or the network has ({why}); its own message says "
            "why, the checkpoint is intact, and the same words and run_dir resume it"
        ) from None


def sum_(comm: Comm, tensor: Tensor) -> None:
    """Replace the tensor, in place, by its sum over the processes, and wait for it."""
    comm.start_sum_(tensor, "sum")()


def agree(comm: Comm, action: Callable[[], T]) -> T:
    """Run the action on every process; if any is refused, all are, with the first one's message."""
    refusal, result = None, None
    try:
        result = action()
    except Refused as error:
        refusal = str(error)
    refusals = [(rank, text) for rank, text in enumerate(comm.gather_objects(refusal)) if text]
    if refusals:
        rank, text = refusals[0]
        raise Refused(text if rank == 0 else f"process {rank}: {text}")
    return result  # type: ignore[return-value]


def from_first(comm: Comm, action: Callable[[], T]) -> T:
    """The result of the action on process 0, or its refusal, on every process."""
    outcome: tuple[T | None, str | None] = (None, None)
    if comm.rank == 0:
        try:
            outcome = action(), None
        except Refused as error:
            outcome = None, str(error)
    result, refusal = comm.broadcast_object(outcome)
    if refusal is not None:
        raise Refused(refusal)
    return result  # type: ignore[return-value]


def _open(library: str, launch: Launch, device: Device, settings: CommSettings) -> Comm:
    timeout, join_timeout = settings.timeout, settings.join_timeout
    match library:
        case "single":
            from lsgd.comm.single import SingleComm

            return SingleComm()
        case "torch":
            from lsgd.comm.torch import TorchComm

            if launch.life is not None:
                from lsgd.comm.lives import LivingComm

                return LivingComm(launch, device=device, timeout=timeout, join_timeout=join_timeout)
            return TorchComm(launch, device=device, timeout=timeout, join_timeout=join_timeout)
        case "horovod":
            try:
                from lsgd.comm.horovod import HorovodComm
            except ImportError as error:
                raise Refused(
                    f"comm=horovod, but Horovod cannot be imported ({error}); build it for this "
                    f"torch with {script('setup/horovod.sh')}, or write comm=torch"
                ) from None
            return HorovodComm(timeout=timeout, join_timeout=join_timeout)
    raise ValueError(library)


def _horovod_suits(launcher: str, device: Device) -> bool:
    try:
        from lsgd.comm.horovod import suits
    except ImportError:
        return False
    return suits(launcher, device)


def _remedy(library: str, launch: Launch) -> str:
    if library == "single":
        return "leave comm=auto, which joins them, or start a single process"
    if library == "horovod" and launch.launcher == "torchrun":
        return "start with horovodrun or mpirun, or write comm=torch"
    return (
        f"the Horovod installed here is not built for {launch.launcher} (horovodrun --check-build "
        "shows what for); start with horovodrun, or write comm=torch"
    )
