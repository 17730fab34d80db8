"""TensorFlow's strategies and ours: that they train the same network, and what the report says."""

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.launching import WITHOUT_COMPILER

from benchmarks import strategies
from benchmarks.strategies import LSGD, MIRRORED, SERVERS, TENSORFLOW, StrategyCell
from lsgd.bench import results
from lsgd.errors import UsageError
from lsgd.job.children import OURS
from lsgd.job.system import tagged_pids
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads import open_workload

LENET = ["+recipe=fashion_lenet5", "inputs=synthetic", "data.train_examples=1920"]


@pytest.mark.tensorflow
@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    "theirs",
    [
        StrategyCell(TENSORFLOW, MIRRORED, 2, 2),
        # Three processes that import TensorFlow, for one loss.
        pytest.param(StrategyCell(TENSORFLOW, SERVERS, 1, 3), marks=pytest.mark.soak),
    ],
    ids=lambda cell: cell.strategy,
)
def test_torch_and_tensorflow_train_the_same(
    theirs: StrategyCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to the report, by processes of their own; the servers' update each
    batch in an order of their own, so of them only the last loss is known: not far above ours."""
    monkeypatch.setenv("PYTHONPATH", WITHOUT_COMPILER, prepend=os.pathsep)
    monkeypatch.setattr(strategies, "CELLS", (theirs, StrategyCell(LSGD, "allreduce", 2, 1)))
    out = tmp_path / "out"
    words = ["schedule.reference_lr=0.1", "data.val_examples=250"]
    assert strategies.main([*LENET, *words, "--rounds", "1", "--out", str(out)]) == 0
    result = json.loads((out / "strategies.json").read_text())
    assert result["missing"] == {}
    tensorflows, ours = result["cells"].values()
    assert result["parameters"] == 61706
    # A row of an update: an update that is not ours is seen in the next loss.
    assert ours["log_steps"] == 1
    assert len(ours["losses"][0]) == 30
    if theirs.strategy == MIRRORED:
        assert tensorflows["losses"][0][:10] == pytest.approx(ours["losses"][0][:10], abs=1e-5)
    else:
        # It may be far below: no order of single batches is sure to wait as long on the plateau.
        assert 0 < tensorflows["losses"][0][-1] < ours["losses"][0][-1] + 0.5
    for each in result["cells"].values():
        assert min(*each["batches_per_second"], *each["cores"], *each["start_up"]) > 0
    files = ["README.md", "strategies.json", "strategies.png", "strategies.svg"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert not tagged_pids(OURS)


def test_each_worker_gets_its_images_of_every_update(tmp_path: Path) -> None:
    """And their labels, as the loader of the recipe brings them."""
    recipe = compose_recipe(*LENET, "workers=3", "data.train_examples=400", "worker_batch=40")
    of_workers = [np.fromfile(file, np.float32) for file in strategies._examples(recipe, tmp_path)]
    workload = open_workload(recipe, torch.device("cpu"))
    order = workload.example_order(0)
    for worker, records in enumerate(of_workers):
        # Three updates of 120 images, of which 40 are this worker's.
        ids = np.concatenate([order[40 * (3 * step + worker) :][:40] for step in range(3)])
        [(images, labels)] = workload.inputs().train([MicroBatch(0, ids)])
        wanted = np.concatenate([images.flatten(1).numpy(), labels[:, None].numpy()], 1)
        assert np.array_equal(records.reshape(120, -1), wanted)


def test_a_cell_that_fails_is_left_out_of_later_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(result: dict[str, Any], cell: StrategyCell, *_: object) -> None:
        runs.append(cell.strategy)
        if cell.strategy == SERVERS:
            raise UsageError("no network")

    monkeypatch.setattr(strategies, "_run", run)
    cells = (StrategyCell(TENSORFLOW, SERVERS, 1, 3), StrategyCell(LSGD, "sync", 1, 2))
    monkeypatch.setattr(strategies, "CELLS", cells)
    result: dict[str, Any] = {"missing": {}}
    record = results.BenchmarkRecord("strategies", "x", None)
    strategies.bench(result, Namespace(rounds=2), record)
    assert runs == [SERVERS, "sync", "sync"]
    assert result["missing"] == {"TensorFlow, ParameterServerStrategy, 1 on 3": "no network"}
