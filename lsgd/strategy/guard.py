"""Checks on the host for divergence, preemption and due checkpoints that never stall the device."""

import math
import time

import torch
from torch import Tensor

from lsgd.comm import RERUN
from lsgd.errors import DivergedError, PeerLostError, PreemptedError
from lsgd.job.device import needs_pinned_memory, new_event

LOWER_LR = "start again in another run_dir with a lower schedule.reference_lr or a longer warmup"
"""Advice in a DivergedError, since a plain rerun would diverge at the same step."""
NOTHING_SAVED = f"nothing was saved after the step before; {LOWER_LR}"
"""The end of the message of a DivergedError of a run."""
STOP_NOTE, SAVE_NOTE = 1.0, 0.5
"""Notes that a process sends: it received a stop request, and (process 0) a checkpoint is due.

NonFiniteGuard reads the sum of the notes of all processes.
"""

PAUSE = 0.001
"""Longest pause, in seconds, between two polls of a step that the device has not finished.

The guard learns of the end of the step up to this much later; meanwhile the device has the next
step to compute.
"""


def divergence(step: int, advice: str = f"nothing was saved since; {LOWER_LR}") -> DivergedError:
    """Return the error for a loss or a gradient of this step of the run that is not finite."""
    return DivergedError(f"the loss or a gradient of step {step} is not finite; {advice}")


class NonFiniteGuard:
    """Checker of each step's flags: non-finite values, stop requests and due checkpoints.

    It reads the reducer's flags one step late, when the device has already computed them. `timeout`
    is the time in seconds that a step may take on the device from its start. A step that takes
    longer waits for a process that has exited or hangs; NCCL itself would wait for ever. `advice`
    ends the message of a DivergedError.
    """

    def __init__(self, flags: Tensor, *, timeout: float, advice: str = NOTHING_SAVED) -> None:
        self.flags, self.timeout, self.advice = flags, timeout, advice
        device = flags.device
        self.seen = torch.zeros(2, device="cpu", pin_memory=needs_pinned_memory(device))
        self.copied = None if device.type == "cpu" else new_event(device)
        self.started = 0.0
        self.step = -1
        self.note = 0.0

    def watch(self, step: int) -> None:
        """Raise DivergedError for the step before; start to copy this step's flags to the host."""
        self.raise_if_nonfinite()
        # The larger note of two steps: a row of local steps calls `watch` twice between two polls.
        note = float(self.seen[1])
        self.note = note if note > self.note else self.note
        self.step = step
        self.seen.copy_(self.flags, non_blocking=True)
        if self.copied:
            self.copied.record()
            self.started = time.monotonic()

    def wait(self) -> None:
        """Wait for the device to finish the last watched step; PeerLostError at the timeout."""
        pause = PAUSE / 16
        while self.copied and not self.copied.query():
            if time.monotonic() - self.started > self.timeout:
                lost = PeerLostError(
                    f"step {self.step} has waited for the other processes for {self.timeout:g} "
                    "s; one has exited, hangs or is slower than comm.timeout allows; its own "
                    f"message may say why; {RERUN}"
                )
                lost.waited = math.inf
                raise lost
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)

    def raise_if_nonfinite(self) -> None:
        """Raise DivergedError if a loss or gradient up to the last watched step was not finite."""
        if self.copied:
            self.wait()
        if self.seen[0]:
            raise divergence(self.step, self.advice)

    def forget_save(self) -> None:
        """Drop pending requests for a checkpoint, not for a stop, after `raise_if_nonfinite`."""
        self.seen[1].floor_()
        self.note //= STOP_NOTE

    def poll(self) -> bool:
        """Return whether process 0 requested a checkpoint; raise PreemptedError at a stop request.

        Both happen after the same step on all processes. Each request is reported once.
        """
        note, self.note = self.note, 0.0
        if note >= STOP_NOTE:
            raise PreemptedError
        return note == SAVE_NOTE
