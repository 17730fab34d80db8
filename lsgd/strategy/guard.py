"""Tells the host that training has diverged, is to stop or to be saved, without a wait for the
device."""

import time

import torch
from torch import Tensor

from lsgd.errors import Diverged, PeerLost, Preempted

LOWER_LR = "start again in another run_dir with a lower schedule.reference_lr or a longer warmup"
"""The remedy in words; the same run again would diverge again, at the same step."""
LEAVE, SAVE = 1.0, 0.5
"""The note of a process in a step that was told to leave, and what process 0 adds so that all save.
Guard reads their sum."""

PAUSE = 0.001
"""The longest pause, in seconds, between two looks at a step that is not done: what a step is seen
late by. The device has the next step to do meanwhile."""


class Guard:
    """Reads the flags of Reducer on the device one step late, by when they have been computed.

    `timeout` is the time in seconds that a step may take there from when it was started: one that
    takes longer waits for a process that has gone or is silent, as NCCL itself does for ever.
    """

    def __init__(self, flags: Tensor, *, timeout: float) -> None:
        self.flags, self.timeout = flags, timeout
        self.on_gpu = flags.is_cuda
        self.seen = torch.zeros(2, pin_memory=self.on_gpu)
        self.copied: torch.cuda.Event | None = torch.cuda.Event() if self.on_gpu else None
        self.started = 0.0
        self.step = -1
        self.note = 0.0

    def watch(self, step: int) -> None:
        """Check the flags of the step before, then start to copy those of this one."""
        self.check()
        # Those of two steps, if a row of local steps has had the guard look between two checks.
        note = float(self.seen[1])
        self.note = note if note > self.note else self.note
        self.step = step
        self.seen.copy_(self.flags, non_blocking=True)
        if self.copied:
            self.copied.record()
            self.started = time.monotonic()

    def wait(self) -> None:
        """Wait until the device has done the last watched step; raise PeerLost at its timeout."""
        pause = PAUSE / 16
        while self.copied and not self.copied.query():
            if time.monotonic() - self.started > self.timeout:
                raise PeerLost(
                    f"step {self.step} has waited for the other processes for "
                    f"{self.timeout:g} s; one has gone, hangs or is slower than comm.timeout "
                    "allows, its own message may say why, the checkpoint is intact, and the same "
                    "words and run_dir resume it"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)

    def check(self) -> None:
        """Raise Diverged if the flag was up at the last watched step; called before every save."""
        if self.copied:
            self.wait()
        if self.seen[0]:
            raise Diverged(
                f"the loss or a gradient of step {self.step} is not finite, and nothing was saved "
                f"since the step before; {LOWER_LR}"
            )

    def forget_save(self) -> None:
        """Drop what the steps so far say of saving, once checked; who has to leave leaves."""
        self.seen[1].floor_()
        self.note //= LEAVE

    def leave_if_told(self) -> bool:
        """Raise Preempted, after the same step on all processes, if any was told to leave; return
        whether all are to save, as process 0 has found it time to. A note is told of once.
        """
        note, self.note = self.note, 0.0
        if note >= LEAVE:
            raise Preempted
        return note == SAVE
