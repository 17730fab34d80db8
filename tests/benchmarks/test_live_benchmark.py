"""Real processes beside virtual time: no faster than the cluster; and what the report says."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.launching import WITHOUT_COMPILER

from benchmarks import live
from lsgd.job.children import OURS
from lsgd.job.system import tagged_pids


@pytest.mark.distributed
def test_real_processes_take_the_time_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least: a busy machine may make them slower."""
    monkeypatch.setenv("PYTHONPATH", WITHOUT_COMPILER, prepend=os.pathsep)
    monkeypatch.setattr(live, "NETWORKS", live.NETWORKS[:1])
    monkeypatch.setattr(live, "TOPOLOGIES", ("central",))
    out = tmp_path / "out"
    words = ["--workers", "1", "--rounds", "1", "--seconds", "1", "cluster.spread=0"]
    assert live.main([*words, "--out", str(out)]) == 0
    result = json.loads((out / "live.json").read_text())
    assert result["missing"] == {}
    [cell] = result["cells"].values()
    # 7 ms, and twice 0.247 MB over 1 Gbit/s and 0.1 ms.
    assert cell["virtual"] == [pytest.approx(1 / (0.007 + 2 * (246824 / 1.25e8 + 1e-4)), rel=1e-3)]
    assert 0 < cell["real"][0] < 1.05 * cell["virtual"][0]
    assert cell["cores"][0] > 0
    names = {path.name for path in out.iterdir()}
    assert names == {"README.md", "live.json", "live.png", "live.svg"}
    assert not tagged_pids(OURS)


def facts(**others: Any) -> dict[str, Any]:
    """What is kept of a cell that was run twice."""
    return {
        "network": "LeNet-5", "topology": "central", "workers": 2, "processes": 3, "step": 0.007,
        "gbits": 1, "bytes": 246824, "batches": 100, "real": [100.0, 110.0],
        "virtual": [119.0, 131.0], "cores": [0.5, 0.7], "other_cores": [0.1, 0.3],
    } | others  # fmt: skip


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({}, "yes"),
        ({"virtual": [130.0, 143.0]}, "no"),
        ({"virtual": [75.0, 77.0]}, "no"),
        ({"cores": [1.4, 1.4], "virtual": [200.0, 210.0]}, "no, limited by this machine"),
    ],
)
def test_a_cell_is_within_the_band_or_limited_by_the_machine(
    others: dict[str, Any], verdict: str
) -> None:
    machine = {"gpu": None, "cpu": "C", "cores": 2, "threads_of_torch": 1, "load_average": 0.0}
    result = {
        "machine": machine, "versions": {}, "date": "", "rounds": 2, "seed": 0,
        "cells": {"a": facts(**others)}, "missing": {"b": "it has failed"},
    }  # fmt: skip
    text = live.report(result)
    [row] = [line for line in text.splitlines() if line.startswith("| LeNet-5")]
    assert row.split("|")[-2].strip() == verdict
    assert "- b is not measured: it has failed" in text


def test_the_beginning_and_the_end_of_a_round_do_not_count() -> None:
    """Ten updates a second, but for the first and the last second of ten."""
    moments = [0.0, *(5 + each / 10 for each in range(98)), 100.0]
    assert live.updates_per_second(moments) == pytest.approx(10)
