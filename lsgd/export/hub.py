"""A folder for the Hugging Face Hub: safetensors, configuration and model card."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lsgd.export.card import model_card
from lsgd.export.network import ExportedNetwork, write_safetensors
from lsgd.files import FileContent, write_files

TENSORS = "model.safetensors"


def write_hub(exported: ExportedNetwork, folder: Path) -> str:
    """Write weights, config.json and model card into a folder for the Hub; return the next step."""
    exported = replace(exported, recipe=exported.recipe.without_paths)
    contents: dict[str, FileContent] = {
        TENSORS: partial(write_safetensors, exported),
        "config.json": (json.dumps(hub_config(exported), indent=2) + "\n").encode(),
        "README.md": model_card(exported).encode(),
    }
    write_files(folder, contents)
    return f"{folder / 'README.md'} describes how to load it, and needs a licence"


def hub_config(exported: ExportedNetwork) -> dict[str, Any]:
    """Return the contents of a Hub folder's config.json: network, input, class names, recipe."""
    data, recipe, names = exported.recipe.data, exported.recipe, exported.class_names
    # As transformers' configurations have them; JSON's keys are strings.
    labels = {
        "id2label": {str(label): name for label, name in enumerate(names)},
        "label2id": {name: label for label, name in enumerate(names)},
    }
    return {
        "architecture": recipe.model.name,
        "num_classes": data.classes,
        "image_size": data.image_size,
        "channels": data.channels,
        "mean": data.mean,
        "std": data.std,
        **(labels if names else {}),
        **exported.metadata,
        "lsgd_recipe": asdict(recipe),
    }
