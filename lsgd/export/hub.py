"""A folder as the Hugging Face Hub shows one: tensors, what they are of, and a model card."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lsgd.export.card import card
from lsgd.export.network import Exported
from lsgd.export.safetensors import write_safetensors
from lsgd.files import whole
from lsgd.recipe import Recipe

TENSORS = "model.safetensors"


def without_places(recipe: Recipe) -> Recipe:
    """The recipe without the paths of the machine that it was run on."""
    data = replace(recipe.data, root=None, index=None, skip_list=None)
    return replace(recipe, data=data, run_dir=None)


def write_hub(exported: Exported, folder: Path) -> str:
    """Write tensors, config.json and README.md into the folder; returns where to go on."""
    exported = replace(exported, recipe=without_places(exported.recipe))
    with whole(folder / TENSORS) as file:
        write_safetensors(exported, file)
    with whole(folder / "config.json") as file:
        file.write((json.dumps(hub_config(exported), indent=2) + "\n").encode())
    with whole(folder / "README.md") as file:
        file.write(card(exported).encode())
    return f"{folder / 'README.md'} says how it is loaded, and waits for a licence"


def hub_config(exported: Exported) -> dict[str, Any]:
    """What the tensors are of, and how an image becomes what the network takes."""
    data, recipe = exported.recipe.data, exported.recipe
    return {
        "architecture": recipe.model.name,
        "num_classes": data.classes,
        "image_size": data.image_size,
        "channels": data.channels,
        "mean": data.mean,
        "std": data.std,
        **exported.facts,
        "lsgd_recipe": asdict(recipe),
    }
