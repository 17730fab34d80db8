"""A state dict, as torchvision publishes its weights."""

from typing import BinaryIO

import torch

from lsgd.export.network import Exported


def write_state_dict(exported: Exported, file: BinaryIO) -> str:
    """Write the tensors by their names; returns how they are loaded."""
    torch.save(exported.network.state_dict(), file)
    note = "" if exported.is_torchvisions else f"torchvision has no {exported.recipe.model.name}; "
    return f"{note}load it: {exported.maker}.load_state_dict(torch.load(FILE), strict=True)"
