"""A short reference run for fault tests, and the comparison of another run with it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lsgd.run import checkpoint
from lsgd.run.rows import depends_on_hardware, read_rows

# 4 epochs of 5 steps of 128 images, each with an evaluation of 2000 images.
STEPS = 5
WORDS = [
    "+recipe=digits", "worker_batch=8", "epochs=4", "schedule.milestones=[3]",
    "schedule.warmup_epochs=1", "precision=float64", "model.last_gamma=1.0", "log_steps=1",
    "checkpoint_steps=2", "inputs=synthetic", "data.train_examples=640", "data.val_examples=2000",
    "val_batch=250",
]  # fmt: skip
LINGERING = "val_batch=2"
"""An override that makes each evaluation slow without changing any result."""


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of this kind in a run folder's metrics.jsonl."""
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == kind]


def newest_checkpoint(folder: Path) -> checkpoint.Checkpoint:
    """Load the newest checkpoint of a run folder."""
    path = folder / checkpoint.FILE
    return checkpoint.decode_checkpoint(checkpoint.read(path), str(path))


def assert_equal(folder: Path, undisturbed: Path, *, within: float = 1e-10) -> None:
    """Assert that two run folders have equal rows and checkpoints, momentum included.

    Numbers may differ by `within`: relative in rows, absolute in tensors.
    """
    for kind in ("train", "epoch"):
        assert_equal_rows(rows(folder, kind), rows(undisturbed, kind), within)
    one, other = newest_checkpoint(folder), newest_checkpoint(undisturbed)
    assert (one.step, one.order, one.lr) == (other.step, other.order, other.lr)
    assert one.rates.keys() == other.rates.keys()
    for epoch, rates in other.rates.items():
        assert one.rates[epoch] == pytest.approx(rates, rel=within, abs=0)
    close = {"rtol": 0, "atol": within}
    torch.testing.assert_close(one.model, other.model, **close)
    torch.testing.assert_close(one.optimizer["state"], other.optimizer["state"], **close)


def assert_equal_rows(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], within: float = 1e-10
) -> None:
    """Assert that two lists of rows are equal, except for speeds and waiting times.

    Losses and metrics of them, and gradient norms, may differ by the relative tolerance `within`.
    """
    assert theirs
    for one, other in zip(ours, theirs, strict=True):
        for key in other:
            if depends_on_hardware(key):
                continue
            value = other[key]
            if key.endswith(("loss", "perplexity", "rmse")) or key == "gradient_norm":
                value = pytest.approx(value, rel=within, abs=0)
            assert one[key] == value, key
