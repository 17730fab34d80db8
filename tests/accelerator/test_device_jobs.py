"""Tests of jobs of two processes, each with a stand-in of an accelerator.

Their runs are bit-equal to those of two CPU processes, and the recorded event order of a live run
gives the same bits when it is replayed in one CPU process. One launch makes all runs.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.accelerator import available
from helpers.device_runs import (
    GOLDEN,
    STRATEGIES,
    base,
    counted_steps,
    differences,
    differing_paths,
    with_fields,
)
from helpers.joined_run import train_with_comm
from helpers.launching import launch
from helpers.reference_run import newest_checkpoint

from lsgd.comm import Comm, joined
from lsgd.comm.single import SingleComm
from lsgd.recipe import CommSettings, Recipe

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
BESIDE = {"strategy.topology": "colocated", "strategy.servers": 2}
RUNS: dict[str, dict[str, object]] = {
    "allreduce": {"comm.bucket_mb": 0.02},
    "allreduce fp16": {"gradient_compression": "fp16", "averaging.name": "ema"},
    "sync": STRATEGIES["sync"],
    "sync beside": STRATEGIES["sync"] | BESIDE | {"optim.clip_norm": 0.1},
    "backup": STRATEGIES["backup"],
    "async": STRATEGIES["async"],
    "async local": STRATEGIES["async local"],
    "local": STRATEGIES["local"],
    "diloco": STRATEGIES["diloco"],
}
LIVE: dict[str, dict[str, object]] = {
    "live async": STRATEGIES["async"] | BESIDE,
    "live bounded": STRATEGIES["bounded"] | BESIDE,
    "live backup": STRATEGIES["backup"] | BESIDE,
    "live local steps": STRATEGIES["async local"] | BESIDE,
}


def recipe(name: str, **fields: object) -> Recipe:
    if name in RUNS:
        return with_fields(base("images"), RUNS[name] | fields)
    live = {"workers": 2, "workers_per_pass": 1, "strategy.order": "live"}
    return with_fields(base("images"), LIVE[name] | live | fields)


def train(comm: Comm, made: Recipe, folder: Path, device: str) -> None:
    assert not train_with_comm(comm, replace(made, device=device, run_dir=str(folder)), {})


def main(out: Path) -> None:
    """Train all runs of this module, as one process of the job."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # as launchers show each process only its own GPU
    counts = {}
    with available() as device, joined(CommSettings(timeout=600), device) as comm:
        for name in RUNS:
            train(comm, recipe(name), out / "cpu" / name, "cpu")
        for name in RUNS | LIVE:
            made = recipe(name)
            with counted_steps() as steps:
                train(comm, made, out / "device" / name, "auto")
            counts[name] = steps[-1].summary() if steps else {}
        everyone = comm.gather_objects(counts)
        if comm.rank == 0:
            (out / "counts.json").write_text(json.dumps(everyone))


def read_counts(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the counts of device operations in the last step of each run, by process.

    Live runs are left out, since theirs depend on the order of messages.
    """
    everyone = json.loads((out / "counts.json").read_text())
    return {name: [counts[name] for counts in everyone] for name in RUNS}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all runs in one launch of two processes, and return their folder."""
    out = tmp_path_factory.mktemp("job")
    done = launch("forked", 2, __file__, str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_two_cpus(job: Path, name: str) -> None:
    assert not differences(job / "cpu" / name, job / "device" / name)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_asks_no_more_of_its_device_than_the_golden_file_says(job: Path, name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    found, expected = (
        [{key: step[key] for key in step if key != "operators"} for step in steps]
        for steps in (read_counts(job)[name], golden["jobs"][name])
    )
    assert found == expected


@pytest.mark.parametrize("name", LIVE)
def test_what_live_processes_record_is_made_again(job: Path, tmp_path: Path, name: str) -> None:
    orders = {"strategy.order": str(job / "device" / name / "orders.npz")}
    train(SingleComm(), recipe(name, **orders), tmp_path / "again", "cpu")
    one, other = (saved_results(folder) for folder in (job / "device" / name, tmp_path / "again"))
    assert not list(differing_paths(one, other))


def saved_results(folder: Path) -> list[Any]:
    """Return the saved model, optimizer state and BN statistics of a run.

    BN shares are summed, so their distribution over processes does not matter.
    """
    content = newest_checkpoint(folder)
    state = content.optimizer
    shares = content.parts["batchnorm"]["shares"].sum(0)
    return [content.model, state["state"], state["param_groups"], shares]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
