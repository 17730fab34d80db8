"""The processes of a job that are on one machine: memory that they share, and whether all live."""

import mmap
import os
import secrets
import select
import weakref

from lsgd.comm import Comm, agree, from_first
from lsgd.errors import PeerLost, Refused

TOKEN = 16
"""The bytes by which a process knows the memory of process 0, at its beginning."""


class Neighbours:
    """The processes of a job, all on one machine.

    `memory` is theirs together, `size` bytes of zeros. It has no name in any file system, so
    nothing of it is left when its last process has ended, in whatever way. Raises Refused, on all
    processes, if one of them cannot open it.
    """

    def __init__(self, comm: Comm, size: int) -> None:
        whole = TOKEN + size
        created: list[int] = []

        def create() -> tuple[int, int, bytes]:
            if not hasattr(os, "memfd_create"):
                raise Refused(
                    "strategy=hogwild needs the shared memory of Linux, which this system does not "
                    "have; write strategy=async"
                )
            created.append(os.memfd_create("lsgd"))
            os.ftruncate(created[0], whole)
            token = secrets.token_bytes(TOKEN)
            os.pwrite(created[0], token, 0)
            return os.getpid(), created[0], token

        try:
            pid, number, token = from_first(comm, create)
            mapped = agree(comm, lambda: _open(comm.rank, pid, number, token, whole))
        finally:
            for descriptor in created:
                os.close(descriptor)
        self.memory = memoryview(mapped)[TOKEN:]
        # Readable once its process has ended, also while nobody has taken notice of that.
        self.lives = {
            os.pidfd_open(other): rank
            for rank, other in enumerate(comm.gather_objects(os.getpid()))
            if rank != comm.rank
        }
        self.poll = select.poll()
        for descriptor in self.lives:
            self.poll.register(descriptor, select.POLLIN)
        weakref.finalize(self, _close, list(self.lives))

    def check(self) -> None:
        """Raise PeerLost if the process of another has ended; it does not wait."""
        for descriptor, _ in self.poll.poll(0):
            raise PeerLost(
                f"process {self.lives[descriptor]} has ended, and the others cannot go on without "
                "it; its own message may say why, the checkpoint is intact, and the same words and "
                "run_dir resume it"
            )


def _open(rank: int, pid: int, number: int, token: bytes, size: int) -> mmap.mmap:
    """The memory that process 0 has by this descriptor, of so many bytes."""
    why = "it finds other memory there"
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        try:
            if os.pread(descriptor, TOKEN, 0) == token:
                return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        why = str(error)
    raise Refused(
        f"strategy=hogwild is for processes that share memory, and process {rank} cannot open that "
        f"of process 0 ({why}); start all of them on one machine, in one container and as one "
        "user, or write strategy=async strategy.order=live"
    )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
