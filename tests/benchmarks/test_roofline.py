"""benchmarks.roofline measures each operator of a real step, and computes its least time."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe

from benchmarks import roofline
from benchmarks.operator_groups import COPY, DTYPE, LAYOUT, OTHER, operator_group
from benchmarks.roofline import Rates, TimedOperators, main, roofline_rows, sum_seconds
from lsgd.profile.traffic import OperatorCall, count_traffic, traffic_by_operator

WORDS = ["recipe=digits", "device=cpu", "workers_per_pass=4"]


def call(name: str, moved: int, flops: int) -> OperatorCall:
    return OperatorCall(name, {1: moved}, {}, flops, is_bfloat16=False, fusible=False)


def test_the_slower_of_memory_and_arithmetic_bounds_each_call() -> None:
    """Not their sum over all calls: one convolution may be bound by memory, the next by sums."""
    rates = Rates(bandwidth=100.0, peak=1000.0)
    calls = [call("conv", 200, 1000), call("conv", 100, 3000), call("relu", 50, 0)]
    names = [each.name for each in calls]
    rows = roofline_rows("operator", names, calls, {"relu": 9.0, "conv": 6.0}, rates)
    assert [row["operator"] for row in rows] == ["relu", "conv"]
    assert [row["least_seconds"] for row in rows] == [0.5, 2.0 + 3.0]
    assert [row["calls"] for row in rows] == [1, 2]


def test_each_call_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views take none, and an operator is not charged for the recording of the one before it."""
    clock = iter(range(100))
    monkeypatch.setattr(roofline.time, "process_time", lambda: float(next(clock)) ** 2)
    timed = TimedOperators()
    with timed:
        one = torch.ones(4)  # 0 to 1
        one = one.view(2, 2)  # 2 to 3
        one.relu()  # 4 to 5
        one.relu()  # 6 to 7
    found = sum_seconds(timed.names()["operator"], timed.seconds)
    assert found.pop("relu") == (25 - 16) + (49 - 36)
    assert "view" not in found


def test_a_copy_is_grouped_by_what_it_changes() -> None:
    """A conversion of the layout is found by the strides, whatever the operator is called."""
    timed = TimedOperators()
    images = torch.ones(2, 3, 4, 4)
    with timed:
        last = images.contiguous(memory_format=torch.channels_last)
        images.bfloat16()
        torch.empty_like(images).copy_(last)
        images.clone()
        images.double().copy_(images)
    assert timed.groups == [LAYOUT, DTYPE, LAYOUT, COPY, DTYPE, DTYPE]
    assert operator_group("convolution_backward", (), None) == "convolution, backward"
    assert operator_group("an_operator_of_another_torch", (), None) == OTHER


@pytest.mark.slow
def test_the_whole_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its calls and bytes are those that lsgd.plan bound counts without a machine."""
    monkeypatch.setattr(roofline, "PROBE_SECONDS", 0.0001)
    monkeypatch.setattr(roofline, "COPIED", 2**10)
    assert main([*WORDS, "--steps", "1", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "roofline.json").read_text())
    assert (found["images_per_step"], found["steps"]) == (64, 1)
    rows = {row["operator"]: row for row in found["operators"]}
    counted = count_traffic(compose_recipe(*WORDS, "workers=4"), 4)
    expected = traffic_by_operator(counted.eager)
    for name in ("convolution", "convolution_backward", "threshold_backward"):
        assert (rows[name]["calls"], rows[name]["bytes"]) == expected[name]
        assert rows[name]["seconds"] > 0
    groups = {row["group"]: row for row in found["groups"]}
    assert groups["convolution, forward"] == {"group": "convolution, forward"} | {
        key: value for key, value in rows["convolution"].items() if key != "operator"
    }
    assert sum(row["calls"] for row in groups.values()) == sum(
        row["calls"] for row in rows.values()
    )
    assert rows["convolution"]["flops"] == sum(
        each.flops for each in counted.eager if each.name == "convolution"
    )
    said = capsys.readouterr().out
    assert "a step of one micro-batch of 64 images: " in said
    assert re.search(r"\n\| convolution_backward +\| +\d+ \|", said)
    assert re.search(r"\n\| BN, backward +\| +\d+ \|", said)
    assert re.search(r"\n\| all groups +\| +\d+ \|", said)
    assert re.search(r"\n\| all operators +\| +\d+ \|", said)
