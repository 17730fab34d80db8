"""When a run without progress ends."""

import math

import pytest

from lsgd.rules.early_stopping import EarlyStop, early_stop


@pytest.mark.parametrize(
    ("losses", "patience", "stop"),
    [
        ([3, 2, 2.5, 1], 1, EarlyStop(3, 2)),
        ([3, 2, 2.5, 1], 2, None),
        # Equal is no improvement, and the best is compared, not the value before.
        ([3, 3], 1, EarlyStop(2, 1)),
        ([1, 3, 2], 2, EarlyStop(3, 1)),
        # A value that is no number, as in a row or as in a checkpoint.
        ([None, math.nan], 2, EarlyStop(2, 0)),
        ([2, math.nan, 1, None], 2, None),
        ([], 1, None),
    ],
)
def test_a_run_stops_after_evaluations_without_a_lower_value(
    losses: list[float | None], patience: int, stop: EarlyStop | None
) -> None:
    metrics = {epoch: {"val_loss": loss} for epoch, loss in enumerate(losses, 1)}
    assert early_stop(metrics, "val_loss", patience) == stop


def test_epochs_without_an_evaluation_do_not_count() -> None:
    metrics = {1: {"val_loss": 2.0}, 2: {"train_loss": 9.0}, 3: {"val_loss": 2.0}}
    assert early_stop(metrics, "val_loss", 2) is None
    assert early_stop(metrics, "val_loss", 1) == EarlyStop(3, 1)


def test_what_follows_changes_nothing() -> None:
    """Else a run that has stopped would go on if it were resumed."""
    metrics = {epoch: {"val_loss": loss} for epoch, loss in enumerate([2.0, 3.0, 1.0], 1)}
    assert early_stop(metrics, "val_loss", 1) == EarlyStop(2, 1)
