"""Training steps of the scripts that lsgd replaces: torchvision's and timm's.

Neither script accumulates gradients, nor has per-worker BN: a micro-batch is a batch of theirs,
with an update of its own. They let cuDNN choose its algorithms, deterministic or not, and round to
TF32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.models import DTYPES, make_network, memory_format
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.strategy import StepTask


class TorchvisionStep:
    """The training step of torchvision's references/classification/train.py.

    It reads the loss and the accuracies of every batch, and so waits for the device. bfloat16 is by
    autocast, where the script would use float16.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.device, self.dtype = device, DTYPES[recipe.precision]
        self.bfloat16 = recipe.precision == "bfloat16"
        self.layout = memory_format(recipe)
        self.model = with_plain_batchnorm(make_network(recipe)).to(device)
        self.forward: nn.Module = torch.compile(self.model) if recipe.compile else self.model  # type: ignore[assignment]
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = self.make_optimizer(recipe)

    def make_optimizer(self, recipe: Recipe) -> torch.optim.Optimizer:
        """Return SGD with weight decay for all parameters."""
        return torch.optim.SGD(
            self.model.parameters(),
            lr=recipe.lr(0),
            momentum=recipe.optim.momentum,
            weight_decay=recipe.optim.weight_decay,
            nesterov=recipe.optim.nesterov,
        )

    def step(self, task: StepTask, batches: Iterator[Batch]) -> None:
        """Train on the images of one step, with a separate update for each micro-batch."""
        # Without `enabled` the context would turn cuDNN off.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
            for _ in task.micro_batches:
                images, labels = next(batches)
                images = images.to(
                    self.device, self.dtype, memory_format=self.layout, non_blocking=True
                )
                self.update(images, labels.to(self.device, non_blocking=True))

    def update(self, images: Tensor, labels: Tensor) -> None:
        """Train on one batch as the script does, metrics included."""
        logits, loss = self.loss(images, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        _, best = logits.topk(min(5, logits.shape[1]))
        right = best == labels[:, None]
        loss.item()
        right[:, 0].float().mean().item()
        right.any(1).float().mean().item()

    def loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the mean loss of a batch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            logits = self.forward(images)
            return logits, self.criterion(logits, labels)


class TimmStep(TorchvisionStep):
    """The training step of timm's train.py, with timm's optimizer.

    timm reads the loss too seldom to matter, so this does not.
    """

    def make_optimizer(self, recipe: Recipe) -> torch.optim.Optimizer:
        """Return SGD as timm builds it; raise UsageError if timm is not installed."""
        import lsgd.vision  # noqa: F401  timm needs torchvision, which this makes importable

        try:
            from timm.optim import create_optimizer_v2
        except ImportError as error:
            raise UsageError(f"timm is not installed ({error}); pip install timm") from None
        optimizer: torch.optim.Optimizer = create_optimizer_v2(
            self.model,
            opt="sgd" if recipe.optim.nesterov else "momentum",
            lr=recipe.lr(0),
            weight_decay=recipe.optim.weight_decay,
            momentum=recipe.optim.momentum,
        )
        return optimizer

    def update(self, images: Tensor, labels: Tensor) -> None:
        """Train on one batch as the script does."""
        _, loss = self.loss(images, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def with_plain_batchnorm(model: nn.Module) -> nn.Module:
    """Replace the model's per-worker BN by PyTorch's; a ResNet-50 then equals torchvision's."""
    for layer in model.modules():
        if isinstance(layer, WorkerBatchNorm2d):
            # The parameters and buffers stay the same; only the forward pass becomes PyTorch's.
            layer.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
    return model
