"""The checks that a forward pass keeps images apart: in the rows of batch norm, and in buffers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lsgd.models.parameter_roles import is_vector
from lsgd.rules.batchnorm import WorkerBatchNorm


def find_scattered_rows(network: nn.Module, call: Callable[[slice], object]) -> str | None:
    """Return the path of a batch norm layer in whose input the rows of an image are not adjacent.

    Two images must give the rows that each gives alone; `call` lets a slice of two images go
    through the network. Only a network with several rows per image in a layer has to compute here.
    The network must be on the CPU, and is modified.
    """
    rows: dict[str, list[Tensor]] = {}
    for path, norm in network.named_modules():
        if isinstance(norm, WorkerBatchNorm) and norm.rows_per_image > 1:
            seen = rows[path] = []
            norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
    if not rows:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in network.parameters():
            if is_vector(parameter):  # a scale of 0 would hide differences
                parameter.uniform_(0.5, 1.5)
        network.eval()
        for images in (slice(0, 2), slice(0, 1), slice(1, 2)):
            call(images)
    for path, seen in rows.items():
        calls = len(seen) // 3
        for both, *each in zip(seen[:calls], seen[calls:-calls], seen[-calls:], strict=True):
            # A tolerance for float32; rows of another image differ far more.
            if sum(map(len, each)) != len(both) or not torch.allclose(
                both, torch.cat(each), rtol=1e-3, atol=1e-3
            ):
                return path
    return None


def buffer_versions(network: nn.Module) -> dict[str, int]:
    """Return the versions of a network's buffers, which a change in place increases."""
    return {path: buffer._version for path, buffer in network.named_buffers()}


def find_changed_buffer(network: nn.Module, versions: dict[str, int]) -> str | None:
    """Return the path of a buffer that has changed since these versions, other than those of BN."""
    own = {
        path
        for path, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    for path, buffer in network.named_buffers():
        known = versions.get(path, buffer._version)
        if buffer._version != known and path.rpartition(".")[0] not in own:
            return path
    return None
