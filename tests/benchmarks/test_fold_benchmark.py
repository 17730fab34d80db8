"""What the ways to batch trees compute and are timed on, and how their times are reported."""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from torch import Tensor

from benchmarks import fold, folded_steps
from benchmarks.figure import write_figure
from benchmarks.folded_steps import (
    FOLD,
    FOLD_RECORDING,
    LOWER_BOUND,
    MERGE,
    ONE_BY_ONE,
    SAME_SHAPE,
    TORCHFOLD,
    PublishedCell,
    RecipeTrees,
    TimedMethod,
    difference,
    make_forest,
)
from benchmarks.torchfold import fetch_wheel, load_module
from lsgd.bench.results import BenchmarkRecord
from lsgd.errors import UsageError
from lsgd.installation import install_command

SST = "+recipe=sst_treelstm"
SMALL = [
    SST,
    "inputs=synthetic",
    "data.train_examples=30",
    "data.val_examples=2",
    "data.test_examples=0",
    "data.words=30",
    "model.embedding=8",
    "model.width=8",
]


class CountedCell(PublishedCell):
    """The cell, which also counts the calls of its methods and their rows."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__(rows, size)
        self.rows: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def leaf(self, row: Tensor) -> Tensor:
        self._count("leaf", row)
        return super().leaf(row)

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        self._count("node", left)
        return super().node(left, right)

    def _count(self, op: str, rows: Tensor) -> None:
        self.calls[op] += 1
        self.rows[op] += len(rows)


def ways(torchfold: Any = None, *, training: bool = True) -> dict[str, TimedMethod]:
    """The ways through one batch of 6 trees of 8 leaves."""
    made, _ = folded_steps.random_methods(
        torchfold, size=4, leaves=8, batch=6, count=1, training=training
    )
    return made


def counted(way: TimedMethod) -> CountedCell:
    """A cell that has gone this way through the first batch."""
    cell = CountedCell(6 * 8, 4)
    TimedMethod(way.method, cell, way.batches).step(way.batches[0])
    return cell


@pytest.mark.parametrize(
    ("name", "leaf_calls", "node_calls"),
    [(FOLD, 1, None), (FOLD_RECORDING, 1, None), (SAME_SHAPE, 1, 7), (LOWER_BOUND, 1, 1)],
)
def test_all_ways_go_through_every_leaf_and_node(
    name: str, leaf_calls: int, node_calls: int | None
) -> None:
    """None is spared any by calls that are the same: all leaves of a batch are different."""
    cell = counted(ways()[name])
    assert cell.rows == {"leaf": 6 * 8, "node": 6 * 7}
    assert cell.calls["leaf"] == leaf_calls
    assert cell.calls["node"] == node_calls or (node_calls is None and cell.calls["node"] < 8)


def test_one_at_a_time_a_few_trees_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their leaves are looked up in one call, as those of the other ways."""
    way = ways()[ONE_BY_ONE]
    cell = counted(way)
    assert cell.rows == {"leaf": 4 * 8, "node": 4 * 7}
    assert cell.calls == {"leaf": 1, "node": 4 * 7}
    clock = iter(range(100))
    monkeypatch.setattr(folded_steps.time, "process_time", lambda: float(next(clock)))
    assert way(3) == 6 / 4  # a second for each measured batch, of 4 trees of 6


@pytest.mark.torchfold
def test_torchfold_does_the_same() -> None:
    """Checked to be so before it is timed, and without a call less."""
    torchfold = load_module(fetch_wheel())
    assert counted(ways(torchfold)[TORCHFOLD]).rows == {"leaf": 6 * 8, "node": 6 * 7}
    real, facts = RecipeTrees(compose_recipe(*SMALL)).methods(
        torchfold, batch=5, count=1, training=True
    )
    assert TORCHFOLD in real
    assert facts["difference"] < 1e-5


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_of_training_alone(training: bool) -> None:
    way = ways(training=training)[FOLD]
    values = way.step(way.batches[0])
    assert values.requires_grad == training
    assert way.module is not None
    assert all((each.grad is not None) == training for each in way.module.parameters())


def doubled(cell: PublishedCell, forest: Any) -> Tensor:
    return 2 * folded_steps.fold_recorded(cell, forest)


def half_a_gradient(cell: PublishedCell, forest: Any) -> Tensor:
    values = folded_steps.fold_recorded(cell, forest)
    return values.detach() + 0.5 * (values - values.detach())


def no_number(cell: PublishedCell, forest: Any) -> Tensor:
    return torch.nan * folded_steps.fold_recorded(cell, forest)


@pytest.mark.parametrize("way", [doubled, half_a_gradient, no_number])
def test_a_way_to_other_values_or_gradients_is_refused(way: Callable[..., Tensor]) -> None:
    cell, forest = PublishedCell(24, 4), make_forest(random.Random(0), 3, 8)
    same = {ONE_BY_ONE: folded_steps.one_at_a_time, FOLD: folded_steps.fold_recorded}
    assert difference(cell, same, forest) < 1e-5
    with pytest.raises(UsageError, match="new differs from one at a time"):
        difference(cell, {**same, "new": way}, forest)


@pytest.fixture(scope="module")
def real() -> RecipeTrees:
    return RecipeTrees(compose_recipe(*SMALL))


def test_real_trees_are_all_gone_through(
    real: RecipeTrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bound too; and each way has one look-up of all words of a batch, with a sparse
    gradient, without which recursion would be slow for a reason of its own."""
    made, facts = real.methods(None, batch=5, count=2, training=True)
    assert [*made] == [ONE_BY_ONE, FOLD, LOWER_BOUND, MERGE]
    assert facts["difference"] < 1e-5
    assert facts["examples"] == 30
    rows: Counter[str] = Counter()
    for name in ("scores", "node"):
        method = getattr(real.network, name)

        def noted(*args: Tensor, name: str = name, method: Any = method) -> Tensor:
            rows[name] += len(args[0])
            return method(*args)

        monkeypatch.setattr(real.network, name, noted)
    looked_up: list[int] = []
    hook = real.network.embedding.register_forward_hook(
        lambda _, args, __: looked_up.append(len(args[0]))
    )
    seen = {}
    for name in (ONE_BY_ONE, FOLD, LOWER_BOUND):
        rows.clear()
        looked_up.clear()
        made[name].step(made[name].batches[0])
        seen[name] = dict(rows), sum(looked_up)
        assert len(looked_up) == 1
        gradient = real.network.embedding.weight.grad
        assert gradient is not None
        assert gradient.is_sparse
    hook.remove()
    assert seen[LOWER_BOUND] == seen[ONE_BY_ONE]
    nodes, words = seen[ONE_BY_ONE]
    assert nodes["scores"] == nodes["node"] + words
    # What is the same in a tree is one call of lsgd.fold.
    assert seen[FOLD][1] <= words


@pytest.mark.distributed
def test_everything_but_torchfold_is_measured_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to the tables and figures."""

    def fails() -> Path:
        raise UsageError("no network")

    monkeypatch.setattr(fold, "fetch_wheel", fails)
    monkeypatch.setattr(fold, "LEAVES", 8)
    monkeypatch.setattr(fold, "REAL_BATCHES", (2,))
    out = tmp_path / "out"
    counts = ["--sizes", "8", "--batches", "1,2", "--trees", "2", "--rounds", "6"]
    assert fold.main([*SMALL, *counts, "--out", str(out)]) == 0
    result = json.loads((out / "fold.json").read_text())
    assert result["missing"] == {TORCHFOLD: "no network"}
    assert [(row["size"], row["training"], row["batch"]) for row in result["random"]] == [
        *((8, False, 1), (8, False, 2), (8, True, 1), (8, True, 2))
    ]
    for row in result["random"]:
        assert {*row["seconds"]} == {ONE_BY_ONE, SAME_SHAPE, FOLD_RECORDING, FOLD, LOWER_BOUND}
    for row in (*result["random"], *result["scheduling"], *result["real"]):
        assert all(len(times) == 6 for times in row["seconds"].values())
    files = ["README.md", "fold.json", "fold.png", "fold.svg"]
    assert sorted(path.name for path in out.iterdir()) == files


def made_up(seconds: Mapping[int, Mapping[str, float]], **others: Any) -> dict[str, Any]:
    """The result of a measurement with these seconds of a batch, by its trees and by the way."""
    machine = {"gpu": None, "cpu": "x", "cores": 1, "threads_of_torch": 1, "load_average": 0}

    def row(batch: int, times: Mapping[str, float]) -> dict[str, Any]:
        rounds = {name: [time] * 6 for name, time in times.items()}
        return {"batch": batch, "seconds": rounds, "difference": 1e-6}

    about = {"reading_seconds": 1, "recording_seconds": 0.5, "examples": 7, "nodes": 70}
    return {
        "dataset": "sst", "leaves": 128, "machine": machine, "versions": {}, "date": "",
        "rounds": 6,
        "random": [row(b, times) | {"size": 8, "training": False} for b, times in seconds.items()],
        "scheduling": [row(b, {fold.RECORD: 0.001 * b, MERGE: 0.001}) for b in seconds],
        "real": [
            row(b, times) | about | {"training": True, "launches": 20.2}
            for b, times in seconds.items()
        ],
        "missing": {},
    } | others  # fmt: skip


TIMES = {
    1: {ONE_BY_ONE: 0.2, SAME_SHAPE: 0.2, FOLD: 0.1, FOLD_RECORDING: 0.15, LOWER_BOUND: 0.05},
    64: {
        ONE_BY_ONE: 8.0,
        SAME_SHAPE: 1.0,
        FOLD: 1.25,
        FOLD_RECORDING: 1.5,
        LOWER_BOUND: 0.5,
        TORCHFOLD: 2.5,
    },
}


def cells(report: str, begin: str) -> list[list[str]]:
    """The cells of all rows of tables that begin so."""
    lines = [line for line in report.splitlines() if line.startswith(begin)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_a_report_has_times_ratios_and_the_table_of_the_paper() -> None:
    report = fold.report(made_up(TIMES))
    times, ratios, *_ = cells(report, "| 8    | inference |    64")
    assert times[3:] == ["8000.00", "1000.00", "2500.00", "1500.00", "1250.00", "500.00"]
    assert " ".join(cell.split()[0] for cell in ratios[3:]) == "0.50 0.60 2.50 1.25 2.50 6.40"
    assert ratios[3] == "0.50 (0.50 to 0.50)"
    without = cells(report, "| 8    | inference |     1")
    assert without[0][5] == without[1][3] == without[1][4] == without[1][7] == "–"
    paper = [row for row in cells(report, "| 64 ") if len(row) == 4]
    assert ["64", "1.06", "0.48", "1.25"] in paper
    assert "the cost rises with the batch, is below 1 at 1 and above 1 at 64" in report
    assert ["64", "1.000 (1.000 to 1.000)", "0.016 (0.016 to 0.016)", "–"] in cells(report, "| 64")
    falling = TIMES | {256: TIMES[1]}
    assert "the cost does not always rise" in fold.report(made_up(falling))


def test_what_is_missing_from_a_report_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.plots", None)
    result = made_up(TIMES, real=[], missing={TORCHFOLD: "no network"})
    write_figure(BenchmarkRecord("fold", "", None), result, fold.draw)
    assert fold.report(result).split("\n")[-2:] == [
        "- TorchFold is not measured: no network",
        f"- the figure is not measured: matplotlib is missing: {install_command('report')}",
    ]
