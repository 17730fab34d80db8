"""The ONNX format: a graph for any number of images."""

import warnings
from typing import BinaryIO

import torch

from lsgd.errors import UsageError
from lsgd.export.network import ExportedNetwork
from lsgd.own_parts import first_line

OPSET = 20
"""The version of the ONNX operator set."""
LARGEST = 2**31
"""The bytes that a protobuf message, as which the graph and its weights are stored, stays below."""


def write_onnx(exported: ExportedNetwork, file: BinaryIO) -> str:
    """Write a network as an ONNX graph with weights; return its signature and how to load it.

    The graph maps normalised images (n, channels, height, width) to logits (n, classes), both
    float32.
    """
    data, network = exported.recipe.data, exported.network.float()
    size = sum(each.nbytes for each in network.state_dict().values())
    if size >= LARGEST:
        raise UsageError(
            f"the network of model={exported.recipe.model.name} has {size / 2**30:.1f} GiB in "
            "float32, and a file of --to onnx holds less than 2; write --to safetensors"
        )
    # Two images, as torch.export treats a dimension of size 1 as constant.
    images = torch.zeros(2, data.channels, data.image_size, data.image_size)
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about its own internals
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
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        raise UsageError(
            f"torch.export cannot trace model={exported.recipe.model.name} for --to onnx "
            f"({first_line(cause)}); write --to safetensors, which takes the tensors of any network"
        ) from None
    assert program is not None, "the dynamo exporter gives one"
    program.model.metadata_props.update(exported.metadata | exported.image_metadata)
    file.write(program.model_proto.SerializeToString())
    size = ", ".join(map(str, images.shape[1:]))
    return (
        f"opset {OPSET}, images (n, {size}) -> logits (n, {data.classes}); images are pixels of 0 "
        f"to 1, less {data.mean}, divided by {data.std}\n"
        'load it: onnxruntime.InferenceSession(FILE).run(["logits"], {"images": IMAGES})'
    )
