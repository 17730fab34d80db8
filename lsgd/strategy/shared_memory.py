"""Shared memory and liveness checks between the processes of a job on one machine."""

import mmap
import os
import secrets
import select
import weakref
from contextlib import ExitStack

from lsgd.comm import RERUN, Comm, all_or_raise, broadcast_from_rank0
from lsgd.errors import PeerLostError, UsageError
from lsgd.job.system import memory_with_path, watch_process

TOKEN = 16
"""Bytes at the start of the memory by which a process recognizes that of process 0."""


class SharedMemoryGroup:
    """Memory shared by all processes of a job on one machine, and checks that they run.

    `memory` has `size` bytes, initially zeros. It has no name in any file system, so it is freed
    when its last process has exited, in whatever way. Raises UsageError, on all processes, if one
    of them cannot open it.
    """

    def __init__(self, comm: Comm, size: int) -> None:
        whole = TOKEN + size
        with ExitStack() as until_opened:

            def create() -> tuple[str, bytes]:
                descriptor, path = until_opened.enter_context(memory_with_path("lsgd"))
                os.ftruncate(descriptor, whole)
                token = secrets.token_bytes(TOKEN)
                os.pwrite(descriptor, token, 0)
                return path, token

            path, token = broadcast_from_rank0(comm, create)
            mapped = all_or_raise(comm, lambda: _open(comm.rank, path, token, whole))
        self.memory = memoryview(mapped)[TOKEN:]
        # A descriptor is readable once its process has exited, even if no parent has reaped it.
        self.lives = {
            watch_process(other): rank
            for rank, other in enumerate(comm.gather_objects(os.getpid()))
            if rank != comm.rank
        }
        self.poll = select.poll()
        for descriptor in self.lives:
            self.poll.register(descriptor, select.POLLIN)
        weakref.finalize(self, _close, list(self.lives))

    def check(self) -> None:
        """Raise PeerLostError if another process has exited; return at once otherwise."""
        for descriptor, _ in self.poll.poll(0):
            raise PeerLostError(
                f"process {self.lives[descriptor]} has ended, and the others cannot continue "
                f"without it; its own message may say why; {RERUN}"
            )


def _open(rank: int, path: str, token: bytes, size: int) -> mmap.mmap:
    """Map the shared memory that process 0 created at this path; raise UsageError on failure."""
    why = "the memory there is not that of process 0"
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.pread(descriptor, TOKEN, 0) == token:
                return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        why = str(error)
    raise UsageError(
        f"strategy=hogwild needs processes that share memory, and process {rank} cannot open the "
        f"memory of process 0 ({why}); start all processes on one machine, in one container and "
        "as one user, or write strategy=async strategy.order=live"
    )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
