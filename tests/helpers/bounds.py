"""The bounds on differences between DALI's and PIL's resized pixels, in 8-bit levels."""

import torch

WITHIN = 1
"""The bound inside an image: PIL rounds between the passes over columns and rows, DALI does not."""
EDGE = 32
"""The bound in the outermost rows and columns of a crop window.

There PIL truncates the filter, and DALI repeats the last pixel. At most an eighth of the triangle
filter's area is outside, and 256 / 8 is 32.
"""
CORNER = 60
"""The bound in the corners of a crop window: (1 - (7 / 8) ** 2) * 255, rounded up."""


def assert_within_bounds(levels: torch.Tensor, *, decoding: int = 0) -> None:
    """Assert that pixel differences (..., height, width) are within the bounds.

    `decoding` is the allowed difference of the images before resizing, in levels.
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
"""The bound for bicubic resizing.

Its negative weights sum to -1/8, and the others to 9/8. PIL clamps to 0 to 255 between its passes
(by 32 at most, times 5/4 in the second pass), and truncates the filter at an edge, which changes
less than 1/6 of 127 on either axis, times 5/4; DALI does neither. The remainder is rounding.
"""
