"""Lets the host know that training has left the numbers, while the device works on."""

import torch
from torch import Tensor

from lsgd.errors import Diverged

LOWER_LR = "start again in another run_dir with a lower schedule.reference_lr or a longer warmup"
"""What helps: the same words again would diverge again, at the same step."""


class Guard:
    """Reads a sticky flag on the device one step late, by when it has long been computed."""

    def __init__(self, found_inf: Tensor) -> None:
        self.found_inf = found_inf
        self.on_gpu = found_inf.is_cuda
        self.seen = torch.zeros((), pin_memory=self.on_gpu)
        self.copied: torch.cuda.Event | None = torch.cuda.Event() if self.on_gpu else None
        self.step = -1

    def watch(self, step: int) -> None:
        """Check what was seen of the step before, then start to look at this one."""
        self.check()
        self.step = step
        self.seen.copy_(self.found_inf, non_blocking=True)
        if self.copied:
            self.copied.record()

    def check(self) -> None:
        """Raise Diverged if the flag was up at the last watched step; called before every save."""
        if self.copied:
            self.copied.synchronize()
        if self.seen:
            raise Diverged(
                f"the loss or a gradient of step {self.step} is not finite, and nothing was saved "
                f"since the step before; {LOWER_LR}"
            )
