"""A training loop in plain PyTorch, the baseline for lsgd's training step."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.models import DTYPES, make_network, memory_format
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.strategy import StepTask


def check_plain_sgd(recipe: Recipe) -> None:
    """Raise UsageError unless the recipe uses PyTorch's SGD without gradient clipping."""
    for key, plain in (("name", "sgd"), ("equation", 9), ("clip_norm", None)):
        if (value := getattr(recipe.optim, key)) != plain:
            raise UsageError(
                f"optim.{key}={value} is not PyTorch's SGD, which the loops beside have; write "
                f"optim.{key}={'null' if plain is None else plain}"
            )


class BareLoop:
    """A plain PyTorch loop with the recipe's model, precision, per-worker BN and fused SGD.

    It runs the recipe's batches and micro-batches, but has no reducer, no metric sums and no
    NonFiniteGuard.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        check_plain_sgd(recipe)
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        self.layout = memory_format(recipe)
        self.model = make_network(recipe).to(device)
        self.forward = torch.compile(self.model, dynamic=False) if recipe.compile else self.model
        self.running = RunningStatistics(
            self.model, hosted=recipe.workers, workers=recipe.workers, rank=0, world_size=1
        )
        self.optimizer = torch.optim.SGD(
            optim.parameter_groups(self.model, recipe.optim.weight_decay),
            lr=0.0,
            momentum=recipe.optim.momentum,
            nesterov=recipe.optim.nesterov,
            fused=True,
        )

    def step(self, task: StepTask, batches: Iterator[Batch]) -> None:
        """Make one training step from the batches of its micro-batches, as train_step does."""
        bfloat16 = self.recipe.precision == "bfloat16"
        self.optimizer.zero_grad()
        for each in task.micro_batches:
            images, labels = next(batches)
            images = images.to(
                self.device, self.dtype, memory_format=self.layout, non_blocking=True
            )
            labels = labels.to(self.device, non_blocking=True)
            self.running.start_micro_batch(each)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
                logits = self.forward(images)
            loss = F.cross_entropy(logits.to(self.dtype), labels, reduction="sum")
            (loss / self.recipe.batch_size).backward()
        self.running.end_step(self.recipe.workers)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr(task.step)
        self.optimizer.step()
