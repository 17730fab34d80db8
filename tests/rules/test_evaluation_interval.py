"""Where within an epoch a run is evaluated."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules.evaluation_interval import places_within

EPOCH = st.tuples(st.integers(0, 10**6), st.integers(1, 300)).map(lambda e: (e[0], e[0] + e[1]))


@given(EPOCH, st.integers(1, 999))
def test_a_fraction_has_its_multiples_in_each_epoch(
    epoch: tuple[int, int], thousandths: int
) -> None:
    """Whole steps at or just after them, none twice. Catches 0.3 of 10 steps at the fourth."""
    first, end = epoch
    part = Fraction(thousandths, 1000) * (end - first)
    expected = {first + math.ceil(number * part) for number in range(1, 1001)}
    assert places_within(thousandths / 1000, first, end) == sorted(
        place for place in expected if place < end
    )


@given(EPOCH, st.integers(1, 500))
def test_steps_are_those_of_the_run(epoch: tuple[int, int], steps: int) -> None:
    first, end = epoch
    assert places_within(f"{steps} steps", first, end) == [
        place for place in range(first + 1, end) if place % steps == 0
    ]


def test_a_tiny_fraction_is_every_step() -> None:
    """At once: its multiples are not counted one by one."""
    assert places_within(1e-12, 5, 9) == places_within("1 step", 5, 9) == [6, 7, 8]
