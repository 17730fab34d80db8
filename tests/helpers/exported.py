"""Run folders to export from: two steps of small images, in each network."""

from pathlib import Path

import torch
from torch import Tensor

from helpers.capabilities import need
from helpers.composed import composed
from helpers.saved import WORDS, after
from lsgd.export.network import Exported, read_exported
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run import checkpoint

MADE_UP = ("inputs=synthetic", "data.train_examples=40", "data.val_examples=12")
OF_A_LIBRARY = (
    "+recipe=bs256", "workers=1", "worker_batch=8", "data.classes=7", "data.image_size=64",
    "schedule.reference_lr=0.001", *MADE_UP,
)  # fmt: skip
NETWORKS = {
    "small_resnet": (*WORDS,),
    "lenet5": ("+recipe=fashion_lenet5", "workers=2", "worker_batch=4", *MADE_UP),
    "resnet50": (
        "+recipe=bs256", "workers=1", "worker_batch=8", "data.classes=7", "data.image_size=64",
        "schedule.reference_lr=0.001",
        "model.last_gamma=0.1", "bn_statistics=last", *MADE_UP,
    ),
    "torchvision/squeezenet1_1": (*OF_A_LIBRARY, "model=torchvision/squeezenet1_1"),
    "timm/test_convnext": (
        *OF_A_LIBRARY, "model=timm/test_convnext", "model.options.drop_path_rate=0.2"
    ),
}  # fmt: skip
"""The words of a run in each network; ResNet-50 with branches that count and do not amplify the
rounding of float32, as those of so young a network with larger gammas do."""


def trained(name: str, folder: Path, *words: str) -> Learner:
    """A learner of this network after two steps, whose checkpoint is in the folder."""
    if name.startswith("timm/"):
        need("timm")
    learner = after(composed(*NETWORKS[name], *words), 0, 2)
    folder.mkdir(exist_ok=True)
    checkpoint.write(learner.checkpoint(), folder)
    return learner


def read(folder: Path, form: str, *words: str) -> Exported:
    return read_exported(folder, words, form)


def images(recipe: Recipe, count: int) -> Tensor:
    """Made-up images, as the network takes them."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, recipe.data.channels, recipe.data.image_size, recipe.data.image_size)
    return torch.randn(shape, generator=generator)


@torch.no_grad()
def logits(learner: Learner, batch: Tensor) -> Tensor:
    """What the learner's network says of images, as its run evaluates it."""
    with learner.workload.evaluated(learner.model, learner.workload.inputs()):
        learner.model.eval()
        said: Tensor = learner.model(batch)
        learner.model.train()
    return said
