"""What a run has left, made a network again on this machine."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from lsgd import config
from lsgd.comm import Comm
from lsgd.errors import Refused
from lsgd.evaluation import TrainedModel
from lsgd.recipe import CommSettings, InputsSettings, Recipe
from lsgd.rules import sampler
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.workloads import open_workload


def read_trained(path: Path, words: Sequence[str], *, remedy: str) -> tuple[Recipe, Checkpoint]:
    """A checkpoint, or the newest of a run folder, and its recipe as it is for this machine.

    `words` change execution fields of the recipe, such as data.root=… or val_batch=…. Raises
    Refused if the checkpoint is missing, if a word changes the trajectory, and, with the remedy as
    the end of the sentence, if the file is no whole checkpoint.
    """
    if path.is_dir():
        found = checkpoint.files(path)
        if not found:
            raise Refused(f"{path} has no checkpoint; give a run folder that has one, or its file")
        path = found[0]
    content = checkpoint.read(path)
    try:
        saved = checkpoint.load(content, str(path))
    except checkpoint.Damaged as error:
        raise Refused(f"{str(error).partition(';')[0]}; {remedy}") from None
    # Where it was trained says nothing about this machine.
    this_machine = {"device": "auto", "comm": asdict(CommSettings())}
    inputs = saved.recipe.get("inputs")
    if not (isinstance(inputs, dict) and inputs.get("loader") == "synthetic"):
        this_machine["inputs"] = asdict(InputsSettings())
    recipe = config.from_saved(saved.recipe | this_machine, *words)
    if recipe.fingerprint != saved.fingerprint:
        raise Refused(
            f"{' '.join(words)} would make another run of {path}; a checkpoint is evaluated as it "
            "was trained, and only where and how fast may differ: data.root, device, val_batch, "
            "comm.library"
        )
    return recipe, saved


def make_trained(
    recipe: Recipe,
    name: str,
    weights: dict[str, Tensor],
    parts: dict[str, dict[str, Tensor]],
    comm: Comm,
    device: torch.device,
) -> TrainedModel:
    """The recipe's network with these weights, and with those parts of its workload that are given.

    Raises Refused, naming `name`, if the weights are those of another network.
    """
    workload = open_workload(recipe, device)
    model = workload.network().to(device)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise Refused(
            f"{name} has not the weights of {recipe.model.name} for {recipe.data.classes} "
            f"classes ({lines[-1][:200]}); write model=NAME and data.classes=N as the weights "
            "have them"
        ) from None
    # An evaluation may be made with them, as with an average of weights.
    hosted = sampler.share(recipe.workers, comm.world_size, comm.rank)
    for part in workload.parts(model, hosted, comm):
        if part.name in parts:
            part.restore(parts[part.name])
    return TrainedModel(workload, model, comm, device)
