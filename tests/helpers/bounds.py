"""How far DALI's pixels may be from PIL's after resizing, in levels of 8 bits."""

import torch

WITHIN = 1
"""PIL rounds between the passes over columns and rows, and DALI does not."""
EDGE = 32
"""In the outermost rows and columns of a window: PIL leaves out of the filter what is beyond, DALI
repeats the last pixel. Beyond is at most an eighth of a triangle's area, and 256 / 8 is 32."""
CORNER = 60
"""Where both are at an edge: (1 - (7 / 8) ** 2) * 255, rounded up."""


def within_bounds(levels: torch.Tensor, *, decoding: int = 0) -> None:
    """Fail if differences (..., height, width) are larger than the bounds.

    `decoding` is by how many levels the images may have differed before they were resized.
    """
    rest = levels.clone()
    for row in (0, -1):
        for column in (0, -1):
            assert rest[..., row, column].max() < CORNER + decoding + 1e-3
            rest[..., row, column] = 0
    assert rest.max() < EDGE + decoding + 1e-3
    assert rest[..., 1:-1, 1:-1].numel() == 0 or (
        rest[..., 1:-1, 1:-1].max() < WITHIN + decoding + 1e-3
    )


CUBIC = 93
"""Bicubic resizing weighs some pixels less than 0, by 1/8 in all, so that the other weights make
9/8. PIL clamps between its passes what lies beyond 0 to 255 (by 32 at most, times 5/4 in the second
pass), and leaves out of the filter what is beyond an edge, which is less than 1/6 of 127 on either
axis, times 5/4; DALI does neither. The rest is rounding."""
SMOOTH = 3e-3
"""The share of the values of a batch of photos that may differ by more than WITHIN then."""
