"""The question whether a forward pass is part of a backward pass, as activation checkpoints are."""

import torch


def in_backward() -> bool:
    """Return whether this thread runs a backward pass; compiled code breaks its graph to ask."""
    return torch._C._current_graph_task_id() != -1
