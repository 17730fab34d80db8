"""The writer of a run's checkpoints: one write at a time, in a background thread of process 0."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lsgd.comm import Comm
from lsgd.errors import DISK_FULL_ERRNOS, NotSavedError, PreemptedError, TrainingInterrupted
from lsgd.job.device import needs_pinned_memory, new_event
from lsgd.recipe.retention import Retention
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.metrics import Log


@dataclass(frozen=True)
class _Failure:
    """A failed write of a checkpoint: its reason, its step, and whether the disk was full."""

    why: str
    step: int
    full: bool


MetricsByNumber = Mapping[int, Mapping[str, float]]
"""The metrics of epochs by their numbers, or of evaluations within epochs by their steps."""


class CheckpointSaver:
    """The background writer of a run's checkpoint files; all processes make the same calls.

    `save` copies the state and returns; a thread serialises, hashes and writes it, and the next
    save waits for that. A full disk costs a checkpoint and not the run: the next save logs a
    warning, and training continues. If the failed write is the last one, at the end or on
    preemption, and for any other failure, NotSavedError is raised on all processes. As a context
    manager it lets no process exit before its write has ended.
    """

    def __init__(
        self,
        folder: Path,
        comm: Comm,
        log: Log,
        keep: Retention,
        *,
        best_first: Callable[[MetricsByNumber, MetricsByNumber], Sequence[int]] = lambda *_: (),
    ) -> None:
        """Create the saver, which keeps what `keep` names, and the best one by `best_first`."""
        self.folder, self.comm, self.log = folder, comm, log
        self.keep, self.best_first = keep, best_first
        self.thread = ThreadPoolExecutor(1, "saver")
        self.pending_write: Future[_Failure | None] | None = None
        self._unlinked_step: int | None = None
        """The step of the last checkpoint if no link leads to it."""
        self._has_warned = False

    def save(self, snapshot: Checkpoint, *, milestone: bool = False) -> None:
        """Wait until the previous checkpoint is written, then write this one in the background."""
        failure = self._settle()
        if failure and not failure.full:
            raise NotSavedError(failure.why)
        if failure:
            self.log.warn(snapshot.step, f"{failure.why}; training continues")
        self._warn_without_link(snapshot.step)
        if self.comm.rank == 0:
            copied, wait = _on_host(snapshot)
            self.pending_write = self.thread.submit(self._write, copied, wait, milestone)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Wait for the last checkpoint write; raise NotSavedError on all processes if it failed."""
        self.thread.shutdown()
        if kind in (None, PreemptedError, TrainingInterrupted):
            if failure := self._settle():
                raise NotSavedError(failure.why) from None
            self._warn_without_link(self._unlinked_step)
        # After any other error a broadcast might hang, since other processes may have exited.
        elif self.pending_write and (failure := self.pending_write.result()):
            self.log.warn(failure.step, failure.why)

    def _settle(self) -> _Failure | None:
        failure = self.pending_write.result() if self.pending_write else None
        self.pending_write = None
        return self.comm.broadcast_object(failure)

    def _warn_without_link(self, step: int | None) -> None:
        """Log once, at this step of the run, that the checkpoints written so far have no link."""
        if self._unlinked_step is not None and step is not None and not self._has_warned:
            self._has_warned = True
            self.log.warn(
                step,
                f"{self.folder} is on a drive that refuses symbolic links, so that "
                f"{checkpoint.FILE} and {checkpoint.BEST} are missing; commands that take a run "
                "folder find its newest checkpoint",
            )

    def _write(
        self, snapshot: Checkpoint, wait: Callable[[], None], milestone: bool
    ) -> _Failure | None:
        wait()
        try:
            best_first = self.best_first(snapshot.rates, snapshot.evaluations)
            is_linked = checkpoint.write(
                snapshot, self.folder, milestone=milestone, keep=self.keep, best_first=best_first
            )
            self._unlinked_step = None if is_linked else snapshot.step
        except OSError as error:
            why = f"step {snapshot.step} could not be saved in {self.folder} ({error.strerror}"
            if full := error.errno in DISK_FULL_ERRNOS:
                size = sum(
                    each.nbytes for each in tree_leaves(vars(snapshot)) if isinstance(each, Tensor)
                )
                free = shutil.disk_usage(self.folder).free
                why += f": it needs {size / 2**20:.1f} MiB, {free / 2**20:.1f} are free"
            return _Failure(f"{why}); the checkpoints before it are intact", snapshot.step, full)
        return None


def _on_host(snapshot: Checkpoint) -> tuple[Checkpoint, Callable[[], None]]:
    """Start copying a checkpoint to host memory; return the copy and a function that awaits it.

    The device copies into pinned memory on its current stream, while the host continues.
    """
    device = next(iter(snapshot.model.values())).device

    def copied(value: Any) -> Any:
        match value:
            case Tensor():
                host_copy = torch.empty_like(
                    value, device="cpu", pin_memory=needs_pinned_memory(value.device)
                )
                return host_copy.copy_(value, non_blocking=True)
            case dict():
                return {key: copied(entry) for key, entry in value.items()}
            case list():
                return [copied(entry) for entry in value]
            case tuple():
                return tuple(copied(entry) for entry in value)
        return value

    copy = replace(snapshot, **{key: copied(value) for key, value in vars(snapshot).items()})
    if device.type == "cpu":
        return copy, lambda: None
    done = new_event(device)
    done.record()
    return copy, done.synchronize
