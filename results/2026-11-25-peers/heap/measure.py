"""What the heap of a training holds, and what is in use of it: `python measure.py FOLDER STEPS`.

The FOLDER has train/CLASS/ and val/CLASS/. A line for each moment of some steps of ResNet-50 at 224
pixels, as benchmarks.peers trains it, in MiB: what glibc has of the system, and what of that is in
use.
"""

import ctypes
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.peers import recipe_overrides
from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.inputs import open_inputs
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.step import train_step


class Heap(ctypes.Structure):
    """What mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap


def say(moment: str) -> None:
    """Print what there is now."""
    heap = library.mallinfo2()
    print(f"{moment}: heap {heap.arena >> 20:5}, in use {heap.uordblks >> 20:5}", flush=True)


def main(folder: str, steps: str) -> None:
    """Make the steps."""
    torch.set_num_threads(1)
    device = pick_device("cpu")
    with TemporaryDirectory() as index:
        recipe = load_recipe(recipe_overrides(Path(folder), Path(index), 224, 1))
        learner, inputs = Learner(recipe, SingleComm(), device), open_inputs(recipe, device)
        backward = learner.strategy.backward

        def told(loss: torch.Tensor) -> None:
            say("before backward")
            backward(loss)
            say("after backward ")

        learner.strategy.backward = told  # type: ignore[method-assign]
        for task in learner.strategy.tasks(0, [*range(int(steps))]):
            print(f"step {task.step}")
            train_step(learner, task, inputs.train(task.micro_batches))


if __name__ == "__main__":
    main(*sys.argv[1:])
