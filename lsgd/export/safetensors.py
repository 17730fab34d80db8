"""Tensors in the form of safetensors, which runs nothing when it is read."""

from typing import BinaryIO

from safetensors.torch import save

from lsgd.export.network import Exported


def write_safetensors(exported: Exported, file: BinaryIO) -> str:
    """Write the tensors by their names, and what the run was; returns how they are loaded."""
    # `format` is what others, transformers among them, ask for.
    file.write(save(exported.network.state_dict(), {"format": "pt"} | exported.facts))
    return f"load it: {exported.maker}.load_state_dict(safetensors.torch.load_file(FILE))"
