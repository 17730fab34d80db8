"""A graph of ONNX, for any number of images."""

import warnings
from typing import BinaryIO

import torch

from lsgd.export.network import Exported

OPSET = 20
"""The operators of ONNX that the graph is made of."""


def write_onnx(exported: Exported, file: BinaryIO) -> str:
    """Write the graph from normalised images (n, channels, height, width) to logits (n, classes),
    both float32, with its weights; returns what it takes and gives."""
    data, network = exported.recipe.data, exported.network.float()
    # Two, as torch takes a first dimension of 1 for one that stays so.
    images = torch.zeros(2, data.channels, data.image_size, data.image_size)
    with warnings.catch_warnings(action="ignore"):  # of torch about its own ways
        program = torch.onnx.export(
            network,
            (images,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )
    assert program is not None, "the dynamo exporter gives one"
    program.model.metadata_props.update(exported.facts)
    file.write(program.model_proto.SerializeToString())
    size = "x".join(map(str, images.shape[1:]))
    return f"opset {OPSET}, images (n, {size.replace('x', ', ')}) -> logits (n, {data.classes})"
