"""The places within an epoch at which a run is evaluated, beside the ends of its epochs.

They follow from the recipe's `evaluation.every`: a whole number of epochs has none, a fraction such
as 0.25 counts from the start of each epoch, and "500 steps" counts the steps of the run.
"""

import math
import re
from fractions import Fraction

STEPS = re.compile(r"([1-9]\d{0,8}) steps?")
"""The form of an interval in steps of the run."""


def is_interval(every: int | float | str) -> bool:
    """Return whether a value is an interval: whole epochs, a fraction of an epoch, or steps.

    >>> [is_interval(each) for each in (2, 0.25, "500 steps", 0, 1.5, "500", True)]
    [True, True, True, False, False, False, False]
    """
    match every:
        case bool():
            return False
        case int():
            return every >= 1
        case float():
            return 0 < every < 1
    return STEPS.fullmatch(every) is not None


def is_within_epochs(every: int | float | str) -> bool:
    """Return whether an interval has places within an epoch: a fraction of an epoch, or steps."""
    return not isinstance(every, int)


def places_within(every: int | float | str, first: int, end: int) -> list[int]:
    """Return the numbers of steps made at which a run is evaluated between `first` and `end`.

    These two are the numbers of steps that the run has made at the start and at the end of an
    epoch, and are left out. A fraction is the decimal number that is written, and its multiples are
    rounded up to whole steps.

    >>> places_within(0.25, 20, 30), places_within("7 steps", 20, 30), places_within(1, 20, 30)
    ([23, 25, 28], [21, 28], [])
    """
    if isinstance(every, int):
        return []
    if isinstance(every, str):
        match = STEPS.fullmatch(every)
        assert match, "lsgd.recipe.checks has refused it"
        steps = int(match[1])
        return list(range(first - first % steps + steps, end, steps))
    # Exact, since a product of floating-point numbers may be just above a whole number of steps.
    steps_between = Fraction(str(every)) * (end - first)
    if steps_between <= 1:
        return list(range(first + 1, end))
    multiples = range(1, math.ceil(1 / Fraction(str(every))))
    places = (first + math.ceil(number * steps_between) for number in multiples)
    return [place for place in places if place < end]
