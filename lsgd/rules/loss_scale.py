"""The dynamic loss scale of training in float16 (Micikevicius et al. 2018, section 3.2).

A float16 number below 6e-8 is 0 and one beyond 65504 is infinite, so that small gradients of
activations vanish in a backward pass. The loss is multiplied by a scale before the backward pass,
and the gradients of the parameters, which are in float32, are divided by it afterwards. A scale
that is too large makes them infinite: then the update is skipped and the scale is halved. After
2000 updates in a row the scale is doubled. These numbers are the defaults of torch.amp.GradScaler.

The scale is a power of 2, so that scaling rounds no float32 number. All processes compute it from
the norm of the all-reduced gradient, which makes it the same on each of them.
"""

import torch
from torch import Tensor

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR, BACKOFF_FACTOR = 2.0, 0.5
GROWTH_INTERVAL = 2000
"""The number of updates in a row after which the scale grows."""
STATE_KEY = "loss_scale"
"""The key of the loss scale's state in a checkpoint's optimizer state."""


class LossScale:
    """A dynamic loss scale on the device, which no step reads from the host.

    `found_inf` is 1 if the last step is skipped, and else 0, as fused optimizers expect it.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), INITIAL_SCALE, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        """The number of updates since the scale last changed."""
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """The number of skipped updates of the run."""
        self.found_inf = torch.zeros((), device=device)

    def inverse(self) -> Tensor:
        """Return 1 / scale, by which gradients are multiplied after the all-reduce."""
        return self.scale.reciprocal()

    def end_step(self, gradient_norm: Tensor, diverged: Tensor) -> None:
        """Decide from the norm of the whole gradient if the update is skipped; adapt the scale.

        Sets `diverged`, a float tensor, to 1 if the gradient is not finite at a scale of 1 or less,
        which changes no gradient for the better: then smaller scales cannot mend it. If `diverged`
        is 1 the update is skipped too.
        """
        overflows = gradient_norm.isfinite().logical_not_()
        diverged.logical_or_(overflows & (self.scale <= 1))
        self.found_inf.copy_(overflows.logical_or_(diverged))
        self.skipped += overflows
        # The kernel of GradScaler, which never lets the scale grow to infinity.
        torch._amp_update_scale_(
            self.scale,
            self.good_steps,
            self.found_inf,
            GROWTH_FACTOR,
            BACKOFF_FACTOR,
            GROWTH_INTERVAL,
        )

    def metrics(self) -> dict[str, float]:
        """Return the scale of the next step and the number of skipped steps; waits for the device.

        A row of the run has them under these names.
        """
        return {"loss_scale": self.scale.item(), "skipped_steps": self.skipped.item()}

    def state(self) -> dict[str, Tensor]:
        """Return the scale, its growth counter and the number of skipped steps for a checkpoint."""
        return {
            "scale": self.scale.clone(),
            "good_steps": self.good_steps.clone(),
            "skipped": self.skipped.clone(),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the scale, its growth counter and the number of skipped steps."""
        self.scale.copy_(state["scale"])
        self.good_steps.copy_(state["good_steps"])
        self.skipped.copy_(state["skipped"])
