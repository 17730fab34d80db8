"""Benchmark of lsgd's training step: `python -m benchmarks.step`."""

import sys
from functools import partial

import torch

from benchmarks.bare_loop import BareLoop
from benchmarks.command import as_command
from benchmarks.comparison import Comparison, StepFunction, compare, step_of
from benchmarks.scripts import TimmStep, TorchvisionStep
from lsgd.comm import Comm
from lsgd.learner import Learner
from lsgd.recipe import Recipe

OURS, BARE = "lsgd's step", "a bare loop"
SCRIPTS = {"torchvision's training step": TorchvisionStep, "timm's training step": TimmStep}


def make_steps(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, StepFunction]:
    """Return lsgd's training step and that of a BareLoop, by candidate name."""
    return {OURS: step_of(Learner(recipe, comm, device)), BARE: BareLoop(recipe, device).step}


STEP = Comparison(
    name="step",
    about="""\
What does lsgd's training step cost? Against a loop written by hand in PyTorch: zero_grad, forward,
cross entropy and backward of each pass, fused SGD, with the same model, batch, passes, precision,
per-worker BN and deterministic kernels, and the same result; but without reducer, counts and guard
against what is not finite. Images are made up, and on the device already.

  python -m benchmarks.step +recipe=fashion_bs1k
  python -m benchmarks.step +recipe=bs256 workers_per_pass=8 precision=bfloat16 channels_last=true
""",
    measured_step=OURS,
    baseline_step=BARE,
    max_time_ratio=1.02,
    make_steps=make_steps,
    scripts=SCRIPTS,
    peers=("timm",),
)


main = as_command(partial(compare, STEP))

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
