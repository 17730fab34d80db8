"""Run folders for export tests: two training steps on small images with each network."""

from pathlib import Path

import torch
from torch import Tensor

from helpers.capabilities import require_capability
from helpers.checkpoints import WORDS, learner_after
from helpers.composed import compose_recipe
from lsgd.export.network import ExportedNetwork, build_exported_network, load_for_export
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
    "mynets:Small": (*OF_A_LIBRARY, "model=mynets:Small", "model.options.hidden=[9]"),
    "mynets:altered": (*OF_A_LIBRARY, "model=mynets:altered"),
    "timm/test_convnext": (
        *OF_A_LIBRARY, "model=timm/test_convnext", "model.options.drop_path_rate=0.2"
    ),
}  # fmt: skip
"""The overrides of a run by network.

ResNet-50 has a small last gamma: its residual branches then affect the result, but do not amplify
float32 rounding as larger gammas do after so few steps.
"""

GREY = ("data.channels=1", "data.mean=[0.449]", "data.std=[0.226]")
OWN = """
from torch import nn

class Small(nn.Sequential):
    def __init__(self, classes: int, channels: int, *, hidden=(8,)):
        layers = [nn.Conv2d(channels, *hidden, 3, 2), nn.BatchNorm2d(*hidden), nn.Dropout(0.5)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(*hidden, classes)]
        super().__init__(*layers)

def altered(classes: int) -> nn.Module:
    from torchvision.models import squeezenet1_1

    network = squeezenet1_1(num_classes=classes)
    network.classifier[1] = nn.Sequential(nn.Conv2d(512, 8, 1), nn.Conv2d(8, classes, 1))
    return network
"""
"""A module with two networks of the user's own, of which one alters a network of torchvision."""


def trained_learner(name: str, folder: Path, *words: str) -> Learner:
    """Train this network for two steps, write its checkpoint to a folder, return the learner."""
    if name.startswith("timm/"):
        require_capability("timm")
    learner = learner_after(compose_recipe(*NETWORKS[name], *words), 0, 2)
    folder.mkdir(exist_ok=True)
    checkpoint.write(learner.checkpoint(), folder)
    return learner


def read(folder: Path, form: str, *words: str) -> ExportedNetwork:
    return build_exported_network(folder, *load_for_export(folder, words, form))


def images(recipe: Recipe, count: int) -> Tensor:
    """Return `count` random normalised images (count, channels, height, width)."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, recipe.data.channels, recipe.data.image_size, recipe.data.image_size)
    return torch.randn(shape, generator=generator)


@torch.no_grad()
def logits(learner: Learner, batch: Tensor) -> Tensor:
    """Return the logits of the learner's network for images, evaluated as its run does."""
    with learner.workload.evaluation_mode(learner.model, learner.workload.inputs()):
        learner.model.eval()
        said: Tensor = learner.model(batch)
        learner.model.train()
    return said
