"""What the tests of many recipes compute once for all of them."""

import functools

import pytest

from lsgd.check import learning_rate
from lsgd.recipe import Recipe
from lsgd.rules import sampler

OF_LR = (
    "schedule", "epochs", "workers", "worker_batch", "train_examples", "tail", "batch_growth",
    "batch_schedule", "strategy",
)  # fmt: skip
"""Fields on which the lr of a step may depend."""
curves: dict[str, learning_rate.Curve] = {}
epoch_order = functools.lru_cache(maxsize=8)(sampler.epoch_order)


@pytest.fixture
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the lr of a run and the order of an epoch once for all recipes that share them.

    Ablations have the lr of their base, and the order is of seed and epoch alone, by
    test_sampler.py; that of ImageNet takes long to draw.
    """
    curve = learning_rate._curve

    def curve_once(recipe: Recipe) -> learning_rate.Curve:
        key = repr([getattr(recipe, name) for name in OF_LR])
        if key not in curves:
            curves[key] = curve(recipe)
        return curves[key]

    monkeypatch.setattr(learning_rate, "_curve", curve_once)
    monkeypatch.setattr(sampler, "epoch_order", epoch_order)
