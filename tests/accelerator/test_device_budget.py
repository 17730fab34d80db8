"""Tests of the limits in tests/golden/device.json on the device operations of a step.

test_matrix.py and test_device_jobs.py compare runs with that file.
"""

import json
from typing import Any

import pytest
from helpers.device_runs import GOLDEN, STRATEGIES

STEPS: dict[str, Any] = json.loads(GOLDEN.read_text())["steps"]
PASSES = {"backup": 3, "bounded": 1, "async": 1, "local": 4, "elastic": 4, "diloco": 4}
"""The number of micro-batches in a run's last step, where it is not two."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_waits_at_most_once_and_copies_each_batch_once(strategy: str) -> None:
    """However many passes it has, and however many parameters: a batch is at most two arrays, of
    whole numbers and of others."""
    for name, step in STEPS.items():
        if name.partition(",")[0] == strategy:
            assert sum(step["waits"].values()) <= 1, name
            assert step["from device"] <= 1, name
            assert step["to device"] <= 2 * PASSES.get(strategy, 2), name


def test_all_reduce_waits_for_the_step_before_alone() -> None:
    waits = {tuple(step["waits"]) for name, step in STEPS.items() if name.startswith("allreduce")}
    assert waits == {("event",)}


def test_processes_wait_for_what_they_send_and_no_more() -> None:
    """A process of servers waits before it pushes and before it replies."""
    for name, processes in json.loads(GOLDEN.read_text())["jobs"].items():
        for step in processes:
            assert sum(step["waits"].values()) <= 2, name
            assert step["from device"] <= 3, name
