"""Loading of a trained model from a checkpoint or from weights, for evaluation and export."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsgd import config
from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluation import TrainedModel
from lsgd.inputs import ExampleColumns, Inputs, indexed_class_names
from lsgd.inputs.consistency import Digests, check_same_data, open_consistent_inputs
from lsgd.inputs.wrapped import inputs_after
from lsgd.override_syntax import key_and_value
from lsgd.own_parts import is_import_path
from lsgd.paths import existing_checkpoint
from lsgd.recipe import CommSettings, InputsSettings, Recipe
from lsgd.rules import augmentation, sampler
from lsgd.rules.sampler import MicroBatch
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.class_names import read_class_names
from lsgd.workloads import open_workload


def load_trained(
    path: Path, overrides: Sequence[str], *, remedy: str, any_image_size: bool = False
) -> tuple[Recipe, Checkpoint]:
    """Read a checkpoint, or the newest one of a run folder, and adapt its recipe to this machine.

    `overrides` change execution fields of the recipe, such as data.root=… or val_batch=…, and with
    `any_image_size` data.image_size and data.crop_ratio. Raises UsageError if the checkpoint is
    missing, if an override changes the trajectory, or, with the remedy at the end of the sentence,
    if the file is no complete checkpoint.
    """
    if path.is_dir():
        found = checkpoint.checkpoint_files(path)
        if not found:
            raise UsageError(
                f"{path} has no checkpoint; give a run folder that has one, or its file"
            )
        path = found[0]
    path = existing_checkpoint(path)
    content = checkpoint.read(path, remedy)
    try:
        saved = checkpoint.decode_checkpoint(content, str(path))
    except checkpoint.DamagedCheckpointError as error:
        raise UsageError(f"{str(error).partition(';')[0]}; {remedy}") from None
    values = for_this_machine(saved.recipe)
    sizes: list[list[float]] = []
    rule, keys = values.get("evaluation"), {key_and_value(word)[0] for word in overrides}
    if any_image_size and keys & {"data.image_size", "data.crop_ratio"} and isinstance(rule, dict):
        # A given size holds for a checkpoint of any epoch.
        sizes = rule.get("image_sizes", [])
        values["evaluation"] = rule | {"image_sizes": []}
    recipe = config.from_saved(values, *overrides)
    trained = recipe
    if any_image_size:
        size, ratio = trained_crop(saved)
        own = replace(recipe.data, image_size=size, crop_ratio=ratio)
        trained = replace(recipe, data=own)
    if sizes:
        trained = replace(trained, evaluation=replace(recipe.evaluation, image_sizes=sizes))
    # An earlier fingerprint differs only in initialisation and decay, which do not matter here.
    if saved.fingerprint not in (trained.fingerprint, trained.earlier_fingerprint):
        raise UsageError(
            f"{' '.join(overrides)} would change the run of {path}; a checkpoint is evaluated as "
            f"it was trained, and only {'data.image_size, data.crop_ratio and ' * any_image_size}"
            "execution fields may differ, such as data.root, inputs, device, val_batch, "
            "comm.library, evaluation.sets"
        )
    return recipe, saved


def trained_crop(saved: Checkpoint) -> tuple[int, float]:
    """Return the image size and crop ratio of the run that saved a checkpoint.

    The size is 0 if the run has no images.
    """
    data = saved.recipe["data"]
    return data.get("image_size", 0), data.get("crop_ratio", augmentation.CROP_RATIO)


def for_this_machine(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved recipe without the settings of the machine that trained it.

    They are the device, the communicator, the copy of the data on that machine and, unless the
    examples are made up or those of a loader of the user's own, the loader.
    """
    values = {**saved, "device": "auto", "comm": asdict(CommSettings())}
    if isinstance(data := saved.get("data"), dict) and "stage" in data:
        values["data"] = data | {"stage": None}
    inputs = saved.get("inputs")
    loader = inputs.get("loader") if isinstance(inputs, dict) else None
    if loader != "synthetic" and not is_import_path(loader):
        values["inputs"] = asdict(InputsSettings())
    return values


def load_class_names(path: Path | None, recipe: Recipe) -> list[str]:
    """Return the class names of a run by its folder or a checkpoint in it; empty if unknown.

    Names missing in the folder, as in those of older runs, are read from the index of the data. So
    are those of weights without a run, for which the path is None.
    """
    if path and (names := read_class_names(path if path.is_dir() else path.parent, recipe)):
        return names
    try:
        indexed = indexed_class_names(recipe)
    except (OSError, ValueError, LookupError):  # the data are not needed, so they may be damaged
        return []
    return indexed if len(indexed) == recipe.data.classes else []


def open_data_of_run(open_inputs: Callable[[], Inputs], purpose: str = "") -> Inputs:
    """Open the dataset of a trained model, with the `purpose` of its folder if it is missing.

    The UsageError of training also advises to train without the dataset, which no model of a run
    can do.
    """
    try:
        return open_inputs()
    except UsageError as error:
        reason, advice, _ = str(error).partition("write data.root=FOLDER")
        if not advice:
            raise
        raise UsageError(f"{reason}{advice}{purpose}") from None


class LazyInputs:
    """A data loader that opens the dataset only on request, for models that need no data.

    Training images have the size of the epoch after which the model was saved.
    """

    name = "opened when asked for"

    def __init__(
        self, open_inputs: Callable[[], Inputs], data: Digests, epoch: int | None = None
    ) -> None:
        self._open_inputs, self.data, self.epoch = open_inputs, data, epoch

    def open_inputs(self, purpose: str = "") -> Inputs:
        """Open the dataset; raise UsageError if it is not the data that the run trained on.

        `purpose` follows the advice to give the folder of a dataset that is missing.
        """
        opening = partial(open_data_of_run, self._open_inputs, purpose)
        inputs, here = open_consistent_inputs(SingleComm(), opening)
        check_same_data(self.data, here)
        return inputs_after(inputs, self.epoch)

    def columns(self) -> ExampleColumns:
        """Open the dataset and return the metadata columns of its examples."""
        return self.open_inputs().columns()

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Open the dataset and yield the examples of each training micro-batch."""
        purpose = (
            ", where the training images are, on which this run measures BN statistics for its "
            "evaluation"
        )
        return self.open_inputs(purpose).train(passes)

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Open the dataset and yield the examples of each evaluation micro-batch."""
        return self.open_inputs().evaluation(passes)


def build_trained(
    recipe: Recipe,
    name: str,
    weights: dict[str, Tensor],
    parts: dict[str, dict[str, Tensor]],
    comm: Comm,
    device: torch.device,
    epoch: int | None = None,
) -> TrainedModel:
    """Build a recipe's network with loaded weights and carried state, ready for evaluation.

    `epoch` is that of the last training step. Raises UsageError, with `name` for the file, if the
    weights are those of another network.
    """
    workload = open_workload(recipe, device)
    model = workload.network().to(device)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        why, remedy = (
            lines[-1][:200],
            "write model=NAME and data.classes=N as the weights have them",
        )
        own, first = model.state_dict().keys(), next(iter(weights), "")
        for prefix in {first.removesuffix(key) for key in own if first.endswith(f".{key}")}:
            if {key.removeprefix(prefix) for key in weights} == own:
                why, remedy = f"their names begin with {prefix}", "save them without that"
        raise UsageError(
            f"{name} does not have the weights of {recipe.model.name} for {recipe.data.classes} "
            f"classes ({why}); {remedy}"
        ) from None
    # An evaluation may use carried state, such as averaged weights.
    hosted = sampler.contiguous_share(recipe.workers, comm.world_size, comm.rank)
    for part in workload.carried_states(model, hosted, comm):
        if part.name in parts:
            part.restore(parts[part.name])
    return TrainedModel(workload, model, comm, device, epoch)
