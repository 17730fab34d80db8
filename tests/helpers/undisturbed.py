"""A short run that tests disturb in many ways, and what makes another one equal to it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lsgd.run import checkpoint
from lsgd.run.rows import PER_SECOND, read_rows

# 4 epochs of 5 steps, each with an evaluation of 2000 images.
STEPS = 5
WORDS = [
    "+recipe=digits", "epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1",
    "precision=float64", "model.last_gamma=1.0", "log_steps=1", "checkpoint_steps=2",
    "inputs=synthetic", "data.val_examples=2000", "val_batch=250",
]  # fmt: skip
LINGERING = "val_batch=2"
"""The word with which each evaluation takes a while; it changes no number."""


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of this kind that a run has written."""
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == kind]


def saved(folder: Path) -> checkpoint.Checkpoint:
    """The newest checkpoint of a run."""
    path = folder / checkpoint.FILE
    return checkpoint.load(checkpoint.read(path), str(path))


def assert_equal(folder: Path, undisturbed: Path, *, within: float = 1e-10) -> None:
    """Every row once, at its lr; and the last state, momentum included, to 1e-10 in float64."""
    for kind in ("train", "epoch"):
        same_rows(rows(folder, kind), rows(undisturbed, kind), within)
    one, other = saved(folder), saved(undisturbed)
    assert (one.step, one.order, one.lr) == (other.step, other.order, other.lr)
    assert one.rates.keys() == other.rates.keys()
    for epoch, rates in other.rates.items():
        assert one.rates[epoch] == pytest.approx(rates, rel=within, abs=0)
    close = {"rtol": 0, "atol": within}
    torch.testing.assert_close(one.model, other.model, **close)
    torch.testing.assert_close(one.optimizer["state"], other.optimizer["state"], **close)


def same_rows(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], within: float = 1e-10
) -> None:
    """All that these rows say but for the speed: sums of floating-point numbers to this share of
    them, and the rest exactly."""
    assert theirs
    for one, other in zip(ours, theirs, strict=True):
        for key in other.keys() - {"data_wait"}:
            if key.endswith(PER_SECOND):
                continue
            value = other[key]
            if key.endswith("loss") or key == "gradient_norm":
                value = pytest.approx(value, rel=within, abs=0)
            assert one[key] == value, key
