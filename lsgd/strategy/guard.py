"""Tells the host that training has diverged, is to stop or to be saved, without a wait for the
device."""

import torch
from torch import Tensor

from lsgd.errors import Diverged, Preempted

LOWER_LR = "start again in another run_dir with a lower schedule.reference_lr or a longer warmup"
"""The remedy in words; the same run again would diverge again, at the same step."""
LEAVE, SAVE = 1.0, 0.5
"""The note of a process in a step that was told to leave, and what process 0 adds so that all save.
Guard reads their sum."""


class Guard:
    """Reads the flags of Reducer on the device one step late, by when they have been computed."""

    def __init__(self, flags: Tensor) -> None:
        self.flags = flags
        self.on_gpu = flags.is_cuda
        self.seen = torch.zeros(2, pin_memory=self.on_gpu)
        self.copied: torch.cuda.Event | None = torch.cuda.Event() if self.on_gpu else None
        self.step = -1
        self.note = 0.0

    def watch(self, step: int) -> None:
        """Check the flags of the step before, then start to copy those of this one."""
        self.check()
        self.note = float(self.seen[1])
        self.step = step
        self.seen.copy_(self.flags, non_blocking=True)
        if self.copied:
            self.copied.record()

    def check(self) -> None:
        """Raise Diverged if the flag was up at the last watched step; called before every save."""
        if self.copied:
            self.copied.synchronize()
        if self.seen[0]:
            raise Diverged(
                f"the loss or a gradient of step {self.step} is not finite, and nothing was saved "
                f"since the step before; {LOWER_LR}"
            )

    def forget_save(self) -> None:
        """Drop what the last watched step says of saving, once checked; who has to leave leaves."""
        self.seen[1].floor_()

    def leave_if_told(self) -> bool:
        """Raise Preempted, after the same step on all processes, if any was told to leave; return
        whether all are to save, as process 0 has found it time to.
        """
        if self.note >= LEAVE:
            raise Preempted
        return self.note == SAVE
