"""The largest numeric difference of two nested values, or of two checkpoints."""

from typing import Any

from torch import Tensor

from lsgd.run.checkpoint import Checkpoint


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest absolute difference of tensors in two nested values; assert equal rest."""
    match one:
        case Tensor():
            return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
        case dict():
            assert one.keys() == other.keys()
            pairs = [(value, other[key]) for key, value in one.items()]
        case list():
            pairs = list(zip(one, other, strict=True))
        case _:
            assert one == other
            return 0.0
    return max([0.0, *(largest_difference(*pair) for pair in pairs)])


def distance(one: Checkpoint, other: Checkpoint) -> float:
    """Return the largest absolute difference of tensors in two checkpoints; assert equal rest.

    The shares of BN statistics depend on the number of processes, so their sums are compared.
    """
    for name in ("fingerprint", "step", "order", "lr"):
        assert getattr(one, name) == getattr(other, name)
    sides = []
    for saved in (one, other):
        parts = {name: dict(part) for name, part in saved.parts.items()}
        for part in parts.values():
            if "shares" in part:
                part["shares"] = part["shares"].sum(0)
        sides.append([saved.model, saved.optimizer, parts, saved.tally])
    return largest_difference(*sides)
