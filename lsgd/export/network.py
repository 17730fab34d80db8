"""The network of a checkpoint as its run evaluated it, as a plain module and as a state dict."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

import lsgd
from lsgd.comm.single import SingleComm
from lsgd.job.device import choose_kernels, pick_device
from lsgd.models.library_networks import builder_options, own_network_keywords
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.run.checkpoint import Checkpoint
from lsgd.trained_model import LazyInputs, build_trained, load_class_names, load_trained

FORMATS = {"torchvision": ".pth", "safetensors": ".safetensors", "onnx": ".onnx", "hub": ""}
"""The export formats with the suffix of their file names; the format `hub` writes a folder."""


@dataclass(frozen=True)
class ExportedNetwork:
    """A trained network on the CPU in evaluation mode, with its recipe and checkpoint."""

    recipe: Recipe
    checkpoint: Checkpoint
    network: nn.Module
    class_names: list[str] = field(default_factory=list)
    """The names of the classes by label; empty if unknown."""

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata saved in an exported file beside the tensors, such as recipe and step."""
        recipe = self.recipe
        return {
            "lsgd": lsgd.__version__,
            "recipe": recipe.name,
            "fingerprint": self.checkpoint.fingerprint,
            "seed": str(recipe.seed),
            "step": str(self.checkpoint.step),
            "network": recipe.model.name,
            "data": recipe.data.name,
            "evaluated_as": self.evaluated_as,
        }

    @property
    def image_metadata(self) -> dict[str, str]:
        """The size, mean and std of an image network's input and its class names, each as JSON.

        It is empty for texts.
        """
        data = self.recipe.data
        if data.workload != "images":
            return {}
        facts = {"image_size": data.image_size, "mean": data.mean, "std": data.std}
        named = {"class_names": self.class_names} if self.class_names else {}
        return {key: json.dumps(value) for key, value in (facts | named).items()}

    @property
    def evaluated_as(self) -> str:
        """A description of the exported weights and BN statistics, such as averaged ones."""
        recipe = self.recipe
        weights = {
            "none": "the weights",
            "ema": "an exponential moving average of the weights",
            "last": f"the mean of the weights of the last {recipe.averaging.epochs} epochs' ends",
        }[recipe.averaging.name]
        measures = recipe.measures_bn and worker_batch_norms(self.network)
        measured = ", BN statistics measured with them" if measures else ""
        mirrors = ", evaluated as the mean over an image and its mirror image"
        mirrored = mirrors * recipe.evaluation.mirror
        then = recipe.evaluated_images(recipe.epoch_before(self.checkpoint.step))
        in_rectangles = ", evaluated in rectangles near the aspect ratio of each image"
        shaped = in_rectangles * then.in_rectangles
        if then.side != recipe.data.image_size:
            shaped += f", evaluated with {then.side} pixels"
        return f"{weights} after step {self.checkpoint.step}{measured}{mirrored}{shaped}"

    @property
    def is_torchvision_model(self) -> bool:
        """Whether torchvision builds the same network from its name and number of classes alone."""
        recipe, model = self.recipe, self.recipe.model
        if not type(self.network).__module__.startswith("torchvision.models.") or model.is_own:
            return False
        options = builder_options(recipe) if model.is_from_library else {}
        # One of grey images has another first layer.
        return not options and model.blurpool == "none" and recipe.data.channels == 3

    @property
    def plain_constructor(self) -> tuple[str, str] | None:
        """The module to import and the expression that build a network without lsgd.

        None if only lsgd builds one that takes the exported tensors.
        """
        model, data = self.recipe.model, self.recipe.data
        if self.is_torchvision_model:
            name = model.name.rpartition("/")[2]
            return "torchvision.models", f"torchvision.models.{name}(num_classes={data.classes})"
        if not model.is_own:
            return None
        module, _, name = model.name.partition(":")
        given = own_network_keywords(self.recipe)
        arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
        return module, f"{module}.{name}({arguments})"

    @property
    def constructor_code(self) -> str:
        """The Python expression that builds a network for the exported tensors.

        It is the plain constructor if there is one; else it calls lsgd with the run folder.
        """
        if self.plain_constructor:
            return self.plain_constructor[1]
        recipe = 'lsgd.config.read_recipe(RUN / "config.yaml")'
        if self.recipe.data.is_own_workload:  # which is imported for a recipe to train
            recipe = 'lsgd.config.load_recipe([f"recipe={RUN}/config.yaml"])'
        return f'lsgd.workloads.open_workload({recipe}, torch.device("cpu")).network()'


def load_for_export(
    path: Path, overrides: Sequence[str], export_format: str
) -> tuple[Recipe, Checkpoint]:
    """Read a checkpoint, or the newest one of a run folder, with its recipe.

    Raises UsageError as `load_trained` does, or if the format does not support the workload.
    """
    recipe, saved = load_trained(path, overrides, remedy="give another checkpoint of lsgd")
    if export_format != "safetensors":
        # A text network takes token ids, and only the corpus defines their meaning.
        remedy = "write --to safetensors, which takes the tensors of any network"
        check_supported(recipe, f"--to {export_format}", remedy, workloads=("images",))
    return recipe, saved


def build_exported_network(path: Path, recipe: Recipe, saved: Checkpoint) -> ExportedNetwork:
    """Build the network of a checkpoint that was read from a path, as its run evaluated it.

    Averaged weights and measured BN statistics are applied as in the run's evaluation. The
    measurement reads the training images. Raises UsageError if these are missing.
    """
    device = pick_device(recipe.device)
    choose_kernels(device, precision=recipe.precision, deterministic=recipe.deterministic)
    trained = build_trained(recipe, str(path), saved.model, saved.parts, SingleComm(), device)
    workload, network = trained.workload, trained.workload.network()
    inputs = LazyInputs(workload.inputs, saved.data, recipe.epoch_before(saved.step))
    with torch.no_grad(), workload.evaluation_mode(trained.model, inputs):
        network.load_state_dict(trained.model.state_dict())
    network = network.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    return ExportedNetwork(recipe, saved, network, load_class_names(path, recipe))


def write_safetensors(exported: ExportedNetwork, file: BinaryIO) -> str:
    """Write a network's state dict with metadata as safetensors; return how to load the file."""
    from safetensors.torch import save

    # Other libraries, such as transformers, require the key `format`.
    metadata = {"format": "pt"} | exported.metadata | exported.image_metadata
    # Copies, as the format has neither tensors that share memory nor strides.
    tensors = {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in exported.network.state_dict().items()
    }
    file.write(save(tensors, metadata))
    return (
        f"load it: {exported.constructor_code}.load_state_dict(safetensors.torch.load_file(FILE))"
    )


def write_state_dict(exported: ExportedNetwork, file: BinaryIO) -> str:
    """Write a network's state dict by torch.save; return how to load the file."""
    torch.save(exported.network.state_dict(), file)
    note = (
        ""
        if exported.is_torchvision_model
        else "torchvision does not build it from its name alone; "
    )
    return (
        f"{note}load it: {exported.constructor_code}.load_state_dict(torch.load(FILE), strict=True)"
    )
