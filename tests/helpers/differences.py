"""How far two nested values are apart."""

from typing import Any

from torch import Tensor


def largest_difference(one: Any, other: Any) -> float:
    """The largest difference of any number in the tensors of two values, which else are equal."""
    match one:
        case Tensor():
            return (one - other).abs().max().item() if one.numel() else 0.0
        case dict():
            assert one.keys() == other.keys()
            pairs = [(value, other[key]) for key, value in one.items()]
        case list():
            pairs = list(zip(one, other, strict=True))
        case _:
            assert one == other
            return 0.0
    return max([0.0, *(largest_difference(*pair) for pair in pairs)])
