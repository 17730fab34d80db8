"""The safetensors format, which executes no code when a file is loaded."""

from typing import BinaryIO

from safetensors.torch import save

from lsgd.export.network import ExportedNetwork


def write_safetensors(exported: ExportedNetwork, file: BinaryIO) -> str:
    """Write a network's state dict with metadata as safetensors; return how to load the file."""
    # Other libraries, such as transformers, require the key `format`.
    file.write(save(exported.network.state_dict(), {"format": "pt"} | exported.metadata))
    return (
        f"load it: {exported.constructor_code}.load_state_dict(safetensors.torch.load_file(FILE))"
    )
