"""A step makes the calls that the golden file says, neither more nor fewer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.capabilities import missing

from benchmarks import calls
from lsgd.strategy.reducer import Reducer

ROOT = Path(__file__).resolve().parent.parent.parent
CASE = "small_resnet, 1 pass of 8 workers"


@pytest.fixture
def golden() -> dict[str, calls.Counts]:
    """The golden counts; skips where they do not hold, unless LSGD_REQUIRE names `calls`."""
    content = json.loads(calls.GOLDEN.read_text())
    if other := calls.unlike(content):
        missing("calls", other, "make setup")
    cases: dict[str, calls.Counts] = content["cases"]
    return cases


@pytest.mark.slow
def test_no_step_makes_other_calls(golden: dict[str, calls.Counts], tmp_path: Path) -> None:
    """In a process of its own, which pytest and other tests do not disturb; and in another folder
    and with more threads than the numbers were written with, which change nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if changed := calls.differences(golden, json.loads(done.stdout)):
        pytest.fail(calls.with_advice(changed), pytrace=False)


def test_every_call_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = calls.count(calls.CASES[CASE])
    real, flags = Reducer.finish, torch.zeros(2)

    def planted(reducer: Reducer) -> None:
        python_function()
        torch.empty(4)
        reducer.comm.start_sum_(flags, "planted")()
        real(reducer)

    monkeypatch.setattr(Reducer, "finish", planted)
    after = calls.count(calls.CASES[CASE])
    assert added(before, after) == {
        # The planted function itself is one of them.
        "Python calls": {__name__: 2, "lsgd.comm.single": 2},
        "C calls": {__name__: 1},
        "ATen calls": {"aten::empty": 1},
        "allocations": {"cpu": 1},
        "bytes allocated": {"cpu": 16},
        "sums": {"planted": 1},
        "bytes summed": {"planted": 8},
    }
    monkeypatch.undo()
    assert added(before, calls.count(calls.CASES[CASE])) == {}


def python_function() -> None:
    """Called where one call more is to be counted."""


def added(before: calls.Counts, after: calls.Counts) -> dict[str, Any]:
    """How much more of what; what is as before is left out."""
    more = {
        kind: {
            name: after[kind].get(name, 0) - before[kind].get(name, 0)
            for name in before[kind] | after[kind]
            if before[kind].get(name) != after[kind].get(name)
        }
        for kind in before
    }
    return {kind: each for kind, each in more.items() if each}


def test_a_difference_is_said() -> None:
    old = {"small": {"ATen calls": {"aten::add": 8, "aten::mul": 2}, "sums": {"gradients 0": 1}}}
    new = {"small": {"ATen calls": {"aten::add": 9, "aten::clone": 1}, "sums": {"gradients 0": 1}}}
    assert calls.differences(old, old) == []
    said = calls.differences(old, new)
    assert said == [
        "small: ATen calls 10 -> 10 (+0)",
        "    aten::add 8 -> 9 (+1)",
        "    aten::clone 0 -> 1 (+1)",
        "    aten::mul 2 -> 0 (-2)",
    ]
    assert "python -m benchmarks.calls --write" in calls.with_advice(said)
    assert calls.differences(old, old | {"large": {"sums": {"a": 1}}}) == [
        "large: sums 0 -> 1 (+1)"
    ]


def test_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    content = calls.versions()
    assert calls.unlike(content) is None
    monkeypatch.setattr(torch, "__version__", f"{content['torch']}+cu130")
    assert calls.unlike(content) is None
    monkeypatch.setattr(torch, "__version__", "9.9.0+cpu")
    assert f"torch {content['torch']}, python" in str(calls.unlike(content))
    assert "and here is torch 9.9.0, python" in str(calls.unlike(content))
