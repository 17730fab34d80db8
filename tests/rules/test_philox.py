from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules import philox

WORDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (4 * "00000000 ", 2 * "00000000 ", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (4 * "ffffffff ", 2 * "ffffffff ", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    c, k, e = ([int(word, 16) for word in line.split()] for line in (counter, key, expected))
    assert philox.uint32_blocks((c[0], c[1], c[2], c[3]), k[0] | k[1] << 32).tolist() == e


@given(st.tuples(*4 * [st.lists(WORDS, min_size=1, max_size=4)]), st.integers(0, 2**64 - 1))
def test_a_draw_depends_on_its_own_counter_alone(axes: tuple[list[int], ...], key: int) -> None:
    """All combinations at once, by broadcasting, are what each gives when asked for alone."""
    together = philox.uint32_blocks(np.ix_(*axes), key)  # type: ignore[arg-type]
    assert together.shape == (4, *map(len, axes))
    alone = [philox.uint32_blocks(counter, key) for counter in product(*axes)]  # type: ignore[arg-type]
    assert np.array_equal(together.reshape(4, -1), np.stack(alone, axis=1))


def test_uniforms_fill_the_half_open_unit_interval() -> None:
    counter = (np.arange(100_000), 0, 0, 0)
    draws = philox.uniforms(counter, key=7)
    assert np.array_equal(draws * 2**32, philox.uint32_blocks(counter, key=7))
    assert draws.min() >= 0
    assert draws.max() < 1
    for row in draws:
        # 10 bins of 10,000: five standard deviations are 474.
        assert np.abs(np.histogram(row, bins=10, range=(0, 1))[0] - 10_000).max() < 474
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 5 / np.sqrt(100_000)
