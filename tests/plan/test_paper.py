"""The step of the paper's own server."""

import pytest

from lsgd.plan import paper


def test_the_paper_step() -> None:
    """29 h / 90 / 5004 steps, of which a backward pass of 120 ms."""
    there = paper.paper_step()
    assert there.seconds == pytest.approx(0.232, abs=5e-4)
    assert there.backward_share * there.seconds == pytest.approx(0.120)
    assert there.images_per_second == pytest.approx(138, abs=0.5)
