"""The smallest steps beside two bare loops, in turns, in seconds of the processor.

python results/2026-11-27-auto/smallest_steps.py recipe=fashion_ladder_bs8 data.root=…
"""

import statistics
import sys
import time
from itertools import tee

import torch
from torch.nn import functional as F

from benchmarks.bare_loop import BareLoop
from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.rules import optim
from lsgd.run import metrics
from lsgd.strategy.tasks import synchronous_tasks
from lsgd.train import train_steps
from lsgd.workloads import open_workload

ROUNDS, STEPS = 12, 15
recipe, device = config.load_recipe(sys.argv[1:]), torch.device("cpu")
inputs = open_workload(recipe, device).inputs()
learner, bare = Learner(recipe, SingleComm(), device), BareLoop(recipe, device)
torch.set_num_threads(1)
plain = make_network(recipe)
for module in plain.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.__class__ = torch.nn.BatchNorm2d  # instead of BN by workers
sgd = torch.optim.SGD(
    optim.parameter_groups(plain, recipe.optim.weight_decay),
    lr=0.0, momentum=recipe.optim.momentum, nesterov=recipe.optim.nesterov, fused=True,
)  # fmt: skip
pixels, classes = inputs.train_images, inputs.train_labels
mean, std = (torch.tensor(each)[:, None, None] for each in (recipe.data.mean, recipe.data.std))


class Unsaved:
    """A saver that saves nothing."""

    def save(self, *_: object, **__: object) -> None:
        """Save nothing."""


def ours(steps: list[int]) -> None:
    """Train steps by the training loop, with the loader, the meter and the rows' counts."""
    train_steps(learner, inputs, 0, steps, Unsaved(), metrics.Log(), None)  # type: ignore[arg-type]


def bare_with_loader(steps: list[int]) -> None:
    """Train steps by the bare loop of benchmarks, with BN by workers, on the same batches."""
    tasks, ahead = tee(synchronous_tasks(recipe, learner.workload, range(recipe.workers), 0, steps))
    batches = inputs.train(each for task in ahead for each in task.micro_batches)
    for task in tasks:
        bare.step(task, batches)


def plain_with_loader(steps: list[int]) -> None:
    """Train steps by torch's own modules, on images that are indexed and normalised."""
    order = torch.randperm(len(pixels))
    for step in steps:
        chosen = order[step * recipe.batch_size : (step + 1) * recipe.batch_size]
        images = ((pixels[chosen].float() / 255) - mean) / std
        sgd.zero_grad()
        F.cross_entropy(plain(images), classes[chosen]).backward()
        sgd.param_groups[0]["lr"] = sgd.param_groups[1]["lr"] = recipe.lr(step)
        sgd.step()


LOOPS = {"lsgd": ours, "bare, same loader": bare_with_loader, "plain torch": plain_with_loader}
taken: dict[str, list[float]] = {name: [] for name in LOOPS}
for number in range(ROUNDS + 1):
    steps = list(range(number * STEPS, (number + 1) * STEPS))
    for name, loop in LOOPS.items():
        begin = time.thread_time()
        loop(steps)
        taken[name].append((time.thread_time() - begin) / STEPS * 1e3)
for name, each in taken.items():
    each = each[1:]  # the first allocates
    ratios = sorted(a / b for a, b in zip(taken["lsgd"][1:], each, strict=True))
    low, high = ratios[2], ratios[-3]
    print(
        f"{name}: {statistics.median(each):.2f} ms; lsgd takes {statistics.median(ratios):.3f} "
        f"({low:.3f} to {high:.3f}) times this"
    )
