"""A training run that stops in mid-epoch as if killed, with only its saved files left."""

from typing import Any
from unittest.mock import patch

import pytest

from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.train import train


def train_until(made: Recipe, step: int) -> None:
    """Train the recipe and interrupt it before this step of the run, without a final save."""

    def halted(learner: Learner, *rest: Any) -> None:
        if learner.next_step == step:
            raise KeyboardInterrupt
        train_step(learner, *rest)

    with patch("lsgd.train.train_step", halted), pytest.raises(KeyboardInterrupt):
        train(made)
