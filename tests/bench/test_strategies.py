"""TensorFlow's strategies and ours: that they train the same network, and what the report says."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import refusal

from lsgd.bench import results, strategies
from lsgd.bench.__main__ import main
from lsgd.bench.strategies import LSGD, MIRRORED, SERVERS, TENSORFLOW, Cell
from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.job.children import OURS
from lsgd.job.ending import tagged
from lsgd.rules.sampler import Pass
from lsgd.workloads import open_workload

LENET = ["+recipe=fashion_lenet5", "inputs=synthetic", "data.train_examples=1920"]


@pytest.mark.tensorflow
@pytest.mark.distributed
@pytest.mark.slow
def test_torch_and_tensorflow_train_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to the report, by processes of their own; the servers' update each
    batch in an order of their own, so of them only the last loss is known: not far above ours."""
    cells = (
        Cell(TENSORFLOW, MIRRORED, 2, 2),
        Cell(TENSORFLOW, SERVERS, 1, 3),
        Cell(LSGD, "allreduce", 2, 1),
    )
    monkeypatch.setattr(strategies, "CELLS", cells)
    out = tmp_path / "out"
    words = ["schedule.reference_lr=0.1", "data.val_examples=250"]
    assert main(["strategies", *LENET, *words, "--rounds", "1", "--out", str(out)]) == 0
    result = json.loads((out / "strategies.json").read_text())
    assert result["missing"] == {}
    mirrored, servers, ours = result["cells"].values()
    assert result["parameters"] == 61706
    # A row of an update: an update that is not ours is seen in the next loss.
    assert ours["log_steps"] == 1
    assert len(ours["losses"][0]) == 30
    assert mirrored["losses"][0][:10] == pytest.approx(ours["losses"][0][:10], abs=1e-5)
    # Which may be far below: no order of single batches is sure to wait as long on the plateau.
    assert 0 < servers["losses"][0][-1] < ours["losses"][0][-1] + 0.5
    for each in result["cells"].values():
        assert min(*each["batches_per_second"], *each["cores"], *each["start_up"]) > 0
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "strategies.json",
        "strategies.png",
        "strategies.svg",
    }
    assert not tagged(OURS)


def test_each_worker_gets_its_images_of_every_update(tmp_path: Path) -> None:
    """And their labels, as the loader of the recipe brings them."""
    recipe = load_recipe([*LENET, "workers=3", "data.train_examples=400", "worker_batch=40"])
    of_workers = [np.fromfile(file, np.float32) for file in strategies._examples(recipe, tmp_path)]
    workload = open_workload(recipe, torch.device("cpu"))
    order = workload.order(0)
    for worker, records in enumerate(of_workers):
        # Three updates of 120 images, of which 40 are this worker's.
        ids = np.concatenate([order[40 * (3 * step + worker) :][:40] for step in range(3)])
        [(images, labels)] = workload.inputs().train([Pass(0, ids)])
        wanted = np.concatenate([images.flatten(1).numpy(), labels[:, None].numpy()], 1)
        assert np.array_equal(records.reshape(120, -1), wanted)


def facts(cell: Cell, **others: Any) -> dict[str, Any]:
    """What is kept of a cell that was run three times."""
    measured = {
        "batches_per_second": [100.0, 200.0, 150.0],
        "cores": [0.5, 1.0, 1.5],
        "start_up": [5.0, 6.0, 7.0],
        "start_up_cpu": [3.0, 3.0, 3.0],
        "losses": [[1.0, 0.5]] * 3,
    }
    return vars(cell) | {"log_steps": 62} | measured | others


def made_up(**others: Any) -> dict[str, Any]:
    """The result of a measurement on two cores."""
    machine = {"gpu": None, "cpu": "x", "cores": 2, "threads_of_torch": 1, "load_average": 0}
    cells = [
        facts(Cell(TENSORFLOW, MIRRORED, 1, 1), losses=[[1.00001, 0.6]] * 3),
        facts(Cell(TENSORFLOW, SERVERS, 1, 3)),
        facts(Cell(LSGD, "allreduce", 1, 1)),
    ]
    return {
        "recipe": "fashion_lenet5",
        "dataset": "fashion-mnist",
        "images": 60000,
        "worker_batch": 32,
        "seed": 0,
        "machine": machine,
        "versions": {},
        "date": "today",
        "rounds": 3,
        "cells": {str(number): cell for number, cell in enumerate(cells)},
        "parameters": 61706,
        "missing": {},
    } | others


def test_a_row_has_medians_and_whether_there_are_too_few_cores() -> None:
    report = strategies.report(made_up())
    [mirrored, servers] = [each for each in report.splitlines() if "| TensorFlow" in each]
    assert [cell.strip() for cell in servers.split("|")[3:-1]] == [
        *("1", "3", "150 (100 to 200)", "1.00 (0.50 to 1.50)", "200 (100 to 200)"),
        *("6.0 (5.0 to 7.0)", "3.0 (3.0 to 3.0)", "0.500 (0.500 to 0.500)", "yes"),
    ]
    assert mirrored.split("|")[-2].strip() == "no"
    assert (
        "allreduce, 1 worker: the mean losses of the first 62 updates are the same within 1e-05"
        in report
    )


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lsgd.bench.strategies_plot", None)
    assert strategies.draw(made_up()) == {}
    report = strategies.report(made_up(missing={"TensorFlow, x": "no network"}))
    assert report.endswith("- TensorFlow, x is not measured: no network")


def test_a_cell_that_fails_is_left_out_of_later_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(result: dict[str, Any], cell: Cell, *_: object) -> None:
        runs.append(cell.strategy)
        if cell.strategy == SERVERS:
            raise Refused("no network")

    monkeypatch.setattr(strategies, "_run", run)
    cells = (Cell(TENSORFLOW, SERVERS, 1, 3), Cell(LSGD, "sync", 1, 2))
    monkeypatch.setattr(strategies, "CELLS", cells)
    result: dict[str, Any] = {"missing": {}}
    record = results.Record("strategies", "x", None)
    strategies.bench(result, Namespace(rounds=2), record)
    assert runs == [SERVERS, "sync", "sync"]
    assert result["missing"] == {"TensorFlow, ParameterServerStrategy, 1 on 3": "no network"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=conll_bilstm"], "bench strategies knows only data.workload=images"),
        (["+recipe=digits"], "model=small_resnet on images of 1 channels is not there"),
        ([*LENET, "--rounds", "0"], "--rounds: 0 is not a whole number of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(main, capsys, "strategies", *words)
