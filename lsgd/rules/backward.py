"""The question whether a forward pass is part of a backward pass, as activation checkpoints are."""

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def in_backward() -> bool:
    """Return whether this thread runs a backward pass; compiled code asks at each of its calls."""
    return torch._C._current_graph_task_id() != -1
