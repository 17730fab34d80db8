"""The torchvision format: a state dict saved by torch.save."""

from typing import BinaryIO

import torch

from lsgd.export.network import ExportedNetwork


def write_state_dict(exported: ExportedNetwork, file: BinaryIO) -> str:
    """Write a network's state dict by torch.save; return how to load the file."""
    torch.save(exported.network.state_dict(), file)
    note = (
        ""
        if exported.is_torchvision_model
        else f"torchvision has no {exported.recipe.model.name}; "
    )
    return (
        f"{note}load it: {exported.constructor_code}.load_state_dict(torch.load(FILE), strict=True)"
    )
