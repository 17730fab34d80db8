"""How the network that is enough is looked for; whether it is just enough is in test_step."""

import pytest

from lsgd.plan.network import bisect


def test_bisection() -> None:
    assert bisect(lambda x: x**3, 2.0, high=10.0) == pytest.approx(2 ** (1 / 3), rel=1e-15)
    with pytest.raises(ValueError, match="is not between"):
        bisect(lambda x: x, 2.0, high=1.0)
