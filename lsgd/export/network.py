"""The network of a checkpoint as its run evaluated it, by itself."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lsgd
from lsgd.comm.single import SingleComm
from lsgd.inputs import Inputs
from lsgd.job.device import choose_kernels, pick_device
from lsgd.models.library import own_words
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known
from lsgd.rules.batchnorm import worker_norms
from lsgd.rules.sampler import Pass
from lsgd.run.checkpoint import Checkpoint
from lsgd.trained import make_trained, read_trained

FORMS = {"torchvision": ".pth", "safetensors": ".safetensors", "onnx": ".onnx", "hub": ""}
"""What there is to export to, and how such a file's name ends; of the Hub it is a folder."""


@dataclass(frozen=True)
class Exported:
    """What is exported: a network on the CPU, in evaluation mode, and the run that made it."""

    recipe: Recipe
    saved: Checkpoint
    network: nn.Module

    @property
    def facts(self) -> dict[str, str]:
        """What a file of it says of itself beside its tensors."""
        recipe = self.recipe
        return {
            "lsgd": lsgd.__version__,
            "recipe": recipe.name,
            "fingerprint": self.saved.fingerprint,
            "seed": str(recipe.seed),
            "step": str(self.saved.step),
            "network": recipe.model.name,
            "data": recipe.data.name,
            "evaluated_as": self.evaluated_as,
        }

    @property
    def evaluated_as(self) -> str:
        """Which weights and statistics these are, in words."""
        recipe = self.recipe
        weights = {
            "none": "the weights",
            "ema": "an exponential moving average of the weights",
            "last": f"the mean of the weights of the last {recipe.averaging.epochs} epochs' ends",
        }[recipe.averaging.name]
        measures = recipe.measures_bn and worker_norms(self.network)
        measured = ", BN statistics measured with them" if measures else ""
        return f"{weights} after step {self.saved.step}{measured}"

    @property
    def is_torchvisions(self) -> bool:
        """Whether torchvision makes this very network by its name alone, without lsgd."""
        words = own_words(self.recipe) if self.recipe.model.of_library else {}
        return type(self.network).__module__.startswith("torchvision.models.") and not words

    @property
    def maker(self) -> str:
        """The Python expression that makes a network for these tensors: torchvision's where it has
        one, and else lsgd's, from the run folder."""
        if self.is_torchvisions:
            name = self.recipe.model.name.rpartition("/")[2]
            return f"torchvision.models.{name}(num_classes={self.recipe.data.classes})"
        recipe = 'lsgd.config.read_recipe(RUN / "config.yaml")'
        return f'lsgd.workloads.open_workload({recipe}, torch.device("cpu")).network()'


class _WhenAsked:
    """Inputs that are opened when images are asked for: most networks are exported without any."""

    name = "opened when asked for"

    def __init__(self, open_inputs: Callable[[], Inputs]) -> None:
        self.open_inputs = open_inputs

    def train(self, passes: Iterable[Pass]) -> Iterator[Any]:
        return self.open_inputs().train(passes)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Any]:
        return self.open_inputs().evaluation(passes)


def read_exported(path: Path, words: Sequence[str], form: str) -> Exported:
    """The network of a checkpoint, or of the newest in a run folder, for this form.

    Where the run evaluates an average of its weights, or measures the statistics of BN, so does
    this: then the training images are read. Raises Refused if they are missing, and if the form
    knows no networks of this workload.
    """
    recipe, saved = read_trained(path, words, remedy="give another checkpoint of lsgd")
    if form != "safetensors":
        # The words of a text are numbers to a network, and whose numbers is in the corpus alone.
        remedy = "write --to safetensors, which takes the tensors of any network"
        check_known(recipe, f"--to {form}", remedy, workloads=("images",))
    device = pick_device(recipe.device)
    choose_kernels(device, tf32=recipe.precision == "tf32", repeats=recipe.deterministic)
    trained = make_trained(recipe, str(path), saved.model, saved.parts, SingleComm(), device)
    workload, network = trained.workload, trained.workload.network()
    with torch.no_grad(), workload.evaluated(trained.model, _WhenAsked(workload.inputs)):
        network.load_state_dict(trained.model.state_dict())
    return Exported(recipe, saved, network.to(memory_format=torch.contiguous_format).eval())  # type: ignore[call-overload]
