"""A step makes the calls that the golden file says, neither more nor fewer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.capabilities import skip_or_fail

from benchmarks import calls
from lsgd.strategy.reducer import Reducer

ROOT = Path(__file__).resolve().parent.parent.parent
CASE = "small_resnet, 1 pass of 8 workers"


@pytest.fixture
def golden() -> dict[str, calls.Counts]:
    """The golden counts; skips where they do not hold, unless LSGD_REQUIRE names `calls`."""
    content = json.loads(calls.GOLDEN.read_text())
    if other := calls.version_mismatch(content):
        skip_or_fail("calls", other, "make setup")
    cases: dict[str, calls.Counts] = content["cases"]
    return cases


@pytest.mark.slow
def test_no_step_makes_other_calls(golden: dict[str, calls.Counts], tmp_path: Path) -> None:
    """In a separate process, which pytest and other tests do not disturb; and in another folder
    and with more threads than the numbers were written with, which change nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    if changed := calls.differences(golden, json.loads(done.stdout)):
        pytest.fail(calls.format_differences(changed), pytrace=False)


def test_every_call_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = calls.count_step(calls.CASES[CASE])
    real, flags = Reducer.finish, torch.zeros(2)

    def planted(reducer: Reducer) -> None:
        python_function()
        torch.empty(4)
        reducer.comm.start_all_reduce_(flags, "planted")()
        real(reducer)

    monkeypatch.setattr(Reducer, "finish", planted)
    after = calls.count_step(calls.CASES[CASE])
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
    assert added(before, calls.count_step(calls.CASES[CASE])) == {}


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
