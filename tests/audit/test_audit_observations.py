"""Observations from records that are written by hand, without a script that is started."""

import base64
from array import array
from types import SimpleNamespace
from typing import Any

from lsgd.audit.facts import AuditedJob, PlacedObservation, observe
from lsgd.audit.processes import ScriptProcess
from lsgd.audit.watch.record import Record

Group = tuple[dict[str, int], dict[str, Any]]
"""The counts of the parameters in a group of an optimizer, and its settings."""
SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}


def job(*lines: dict[str, Any], groups: list[Group] | None = None, **update: Any) -> AuditedJob:
    """A job of one process with two updates by SGD, besides other observations."""
    groups = groups or [({"weights": 2}, SGD)]
    line = {
        "kind": "update", "clip": None, "group": None, "used": None, "local": None, "losses": [],
        "passes": [{"images": 256, "train": True, "place": "train.py:8"}], "models": 1,
        "lr": [settings["lr"] for _, settings in groups], "place": "train.py:9",
    }  # fmt: skip
    optimizer = {
        "kind": "optimizer", "name": "SGD", "place": "train.py:2", "scheduler_place": "",
        "groups": [{"counts": counts, "settings": settings} for counts, settings in groups],
        "untouched": {"count": 0, "names": []}, "started_with_state": False,
    }  # fmt: skip
    return AuditedJob([ScriptProcess([*lines, optimizer, line | update, line | update])])


def fact(job: AuditedJob, rule: str) -> PlacedObservation:
    """The observation of a job for a rule."""
    [found] = [each for each in observe(job) if each.observation.rule == rule]
    return found


def epoch(number: int, order: list[int], *, trained: int = 1, updates: int = 0) -> dict[str, Any]:
    """The record of an epoch of a DataLoader over 16 examples in batches of 4."""
    return {
        "kind": "loader", "number": 0, "epoch": number, "root": 0, "subset": None,
        "order": base64.b64encode(array("q", order).tobytes()).decode(),
        "sizes": [4] * (len(order) // 4), "length": 16, "batches": 4, "is_distributed": False,
        "trained": trained, "evaluated": 0, "place": "train.py:3", "used_at": "",
        "made": "train.py:1", "updates": updates, "is_gathered": False,
    }  # fmt: skip


def test_an_epoch_without_an_update_does_not_count() -> None:
    """PyTorch's tutorial takes a batch to look at, and scripts read all images for their mean."""
    record = Record("unused", max_updates=100, max_epochs=2)
    ends = []
    for number_of_updates in (0, 3, 0, 3):
        record.loader = SimpleNamespace(number=0, updated=0)
        for _ in range(number_of_updates):
            record.end_update()
            ends.append(record.is_over())
    assert ends == [False, False, False, False, True, True]
    assert record.trained_epochs == 2


def test_epochs_of_different_loaders_are_counted_by_themselves() -> None:
    """A script may take batches of two loaders by turns, or another loader for larger images."""
    record = Record("unused", max_updates=100, max_epochs=2)
    loaders = [SimpleNamespace(number=number, updated=0) for number in range(2)]
    for update in range(20):
        record.loader = loaders[update % 2]
        record.end_update()
        assert not record.is_over()


def test_the_order_of_a_batch_that_was_only_looked_at_is_not_compared() -> None:
    """The epochs of the training have the same order here, other than that of the look."""
    order = [3, 1, 7, 0, 12, 5, 9, 2, 4, 15, 6, 8, 10, 14, 13, 11]
    look = epoch(1, order[::-1], trained=0)
    found = job(look, epoch(2, order), epoch(3, order, updates=4))
    assert [each.epoch for each in found.first.training] == [2, 3]
    shuffling = fact(found, "shuffling")
    assert shuffling.observation.run == "epoch 2 has the order of epoch 1"
    assert shuffling.place == "train.py:3"
