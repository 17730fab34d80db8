"""Saves a run while it goes on: one write at a time, in the background of process 0."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from lsgd.comm import Comm
from lsgd.errors import FULL, Interrupted, NotSaved, Preempted
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.metrics import Log


@dataclass(frozen=True)
class _Failure:
    """A write that has failed: why, for which step, and whether the disk was full."""

    why: str
    step: int
    full: bool


class Saver:
    """Writes the checkpoints of a run into its folder; all processes have one and use it alike.

    `save` copies the state and returns; serialising, hashing and writing happen in a thread, and
    the next save waits for it. A full disk costs a checkpoint and not the run: a warning says so at
    the next save, and training goes on. Where it is the last one, at the end or on leaving early,
    and for any other failure, NotSaved is raised on all processes. As a context manager it ends no
    process before its write.
    """

    def __init__(self, folder: Path, comm: Comm, log: Log, *, keep: int) -> None:
        self.folder, self.comm, self.log, self.keep = folder, comm, log, keep
        self.thread = ThreadPoolExecutor(1, "saver")
        self.write: Future[_Failure | None] | None = None

    def save(self, snapshot: Checkpoint, *, milestone: bool = False) -> None:
        """Begin to write what Learner.checkpoint has made, once the last write has ended."""
        failure = self._settle()
        if failure and not failure.full:
            raise NotSaved(failure.why)
        if failure:
            self.log.warn(snapshot.step, f"{failure.why}; training goes on")
        if self.comm.rank == 0:
            copied, wait = _on_host(snapshot)
            self.write = self.thread.submit(self._write, copied, wait, milestone)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Wait for the write; raise NotSaved, on all processes, if it was the last and failed."""
        self.thread.shutdown()
        if kind in (None, Preempted, Interrupted):
            if failure := self._settle():
                raise NotSaved(failure.why) from None
        # After another error the other processes may be gone.
        elif self.write and (failure := self.write.result()):
            self.log.warn(failure.step, failure.why)

    def _settle(self) -> _Failure | None:
        failure = self.write.result() if self.write else None
        self.write = None
        return self.comm.broadcast_object(failure)

    def _write(
        self, snapshot: Checkpoint, wait: Callable[[], None], milestone: bool
    ) -> _Failure | None:
        wait()
        try:
            checkpoint.write(snapshot, self.folder, milestone=milestone, keep=self.keep)
        except OSError as error:
            why = f"step {snapshot.step} could not be saved in {self.folder} ({error.strerror}"
            if full := error.errno in FULL:
                size, free = _size(vars(snapshot)), shutil.disk_usage(self.folder).free
                why += f": it needs {size / 2**20:.1f} MiB, {free / 2**20:.1f} are free"
            return _Failure(f"{why}); the checkpoints before it are intact", snapshot.step, full)
        return None


def _on_host(snapshot: Checkpoint) -> tuple[Checkpoint, Callable[[], None]]:
    """A copy that training does not change, and a function that waits until it can be read.

    The device copies in turn with its other work, into pinned memory, while the host goes on.
    """
    on_gpu = any(tensor.is_cuda for tensor in snapshot.model.values())

    def copied(value: Any) -> Any:
        match value:
            case Tensor():
                host_copy = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
                return host_copy.copy_(value, non_blocking=True)
            case dict():
                return {key: copied(entry) for key, entry in value.items()}
            case list():
                return [copied(entry) for entry in value]
        return value

    copy = replace(snapshot, **{key: copied(value) for key, value in vars(snapshot).items()})
    if not on_gpu:
        return copy, lambda: None
    done = torch.cuda.Event()
    done.record()
    return copy, done.synchronize


def _size(value: Any) -> int:
    """The size in bytes of all tensors in a nested value."""
    match value:
        case Tensor():
            return value.nbytes
        case dict():
            return sum(map(_size, value.values()))
        case list():
            return sum(map(_size, value))
    return 0
