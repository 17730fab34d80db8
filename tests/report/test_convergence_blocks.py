"""The section of a report that judges as MLPerf does, on made-up runs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd import definitions
from lsgd.report.blocks import BulletList, Table
from lsgd.report.convergence import ConvergedRuns, judge_as_mlperf, judged_blocks, points_for
from lsgd.report.findings import compute_findings
from lsgd.rules.convergence import EvaluationEpochs
from lsgd.run.read import Run

MLPERF = definitions.load_points("mlperf_resnet")
GRID = EvaluationEpochs()
RUNS = [
    ConvergedRuns("reached", 32768, [56, 56, 56, 57, 58], GRID),
    ConvergedRuns("one not", 8192, [38, 38, 38, 38, math.inf], EvaluationEpochs(4, 2)),
    ConvergedRuns("too fast", 3264, [33, 33, 33, 33, 33], GRID),
    ConvergedRuns("too many", 70000, [99, 99, 99, 99, 99], GRID),
    ConvergedRuns("under way", 3264, [], GRID),
]


def test_a_row_of_each_recipe() -> None:
    table, reasons, _, rules = judged_blocks(RUNS, MLPERF)
    assert isinstance(table, Table)
    assert table.head[-3:] == ["reference", "at least", "verdict"]
    assert [row[1:] for row in table.rows] == [
        ["32768", "56 56 56 57 58", "56.60 ± 0.89", "56.00", "56.33", "56.00", "55.44", "passes"],
        ["8192", "38 38 38 38 ∞", "∞", "38.00", "38.00", "38.64", "37.81", "passes, time x 1.0167"],
        ["3264", "33 33 33 33 33", "33.00 ± 0.00", "33.00", "33.00", "35.15", "34.31", "fails"],
        ["70000", "99 99 99 99 99", "99.00 ± 0.00", "99.00", "99.00", "–", "–", "own point needed"],
        ["3264", "–", "–", "–", "–", "–", "–", "not judged"],
    ]  # fmt: skip
    assert isinstance(reasons, BulletList)
    assert reasons.items[2] == "too fast: faster beyond the noise"
    assert reasons.items[4] == "under way: 0 runs, and a submission has 5"
    assert isinstance(rules, BulletList)
    assert "of 10 points those count that no other shows to be slow: 1632, 3264" in rules.items[0]
    assert "top-1 error 24.10 %" in rules.items[0]


def test_who_looks_seldom_seems_slow() -> None:
    """Evaluated every 4 epochs, a run seems up to 3 slower than beside it every epoch."""
    *_, rules = judged_blocks([*RUNS, replace(RUNS[1], label="another")], MLPERF)
    assert isinstance(rules, BulletList)
    late = [item for item in rules.items if "late" in item]
    assert late == [
        f"{label} is evaluated every 4 epochs from epoch 2 on: its epochs are up to 3 late, and it "
        "passes the more easily for that; the reference was evaluated every epoch."
        for label in ("one not", "another")
    ]


def test_without_published_points_nothing_is_judged() -> None:
    table, says = judged_blocks(RUNS[:2], None)
    assert isinstance(table, Table)
    assert "verdict" not in table.head
    assert table.rows[0][-1] == "56.33"
    assert "Not judged" in str(says)
    assert judged_blocks([], MLPERF) == []


@pytest.mark.parametrize(
    ("words", "rate", "target", "known"),
    [
        (["+recipe=bs8k"], "top1_error", 24.1, True),
        (["+recipe=bs8k"], "top1_error", 24.2, False),
        (["+recipe=bs8k"], "top5_error", 24.1, False),
        (["+recipe=bs8k_resnet101"], "top1_error", 24.1, False),
        (["+recipe=bs8k", "data.image_size=128"], "top1_error", 24.1, False),
        (
            ["+recipe=bs8k", "image_sizes.points=[[1,128],[30,224]]"],
            "top1_error",
            24.1,
            False,
        ),
        (["+recipe=fashion_bs64"], "top1_error", 24.1, False),
    ],
)
def test_points_are_of_one_network_dataset_image_size_and_target(
    words: list[str], rate: str, target: float, known: bool
) -> None:
    found = points_for(compose_recipe(*words), rate, target)
    assert (found == MLPERF) is known


def converged(name: str, epochs: int, *words: str) -> list[Run]:
    """Five runs of a recipe that reach the target after this number of epochs."""
    recipe = compose_recipe(f"+recipe={name}", *words)
    grid = range(1, recipe.epochs + 1)
    rows = [
        {"kind": "epoch", "step": recipe.first_step(epoch), "epoch": epoch,
         "val_top1_error": 20.0 if epoch >= epochs else 60.0}
        for epoch in grid
    ]  # fmt: skip
    return [Run(Path(f"{name}-{seed}"), replace(recipe, seed=seed), rows) for seed in range(5)]


def test_each_recipe_is_judged_by_the_points_of_its_own_paper_network_and_image_size() -> None:
    target = "metric.epochs_to={top1_error: 24.1}"
    made = [
        *converged("digits", 20, target),  # of the smallest minibatch, and without points
        *converged("mlperf_bs4096", 37),
        *converged("mlperf06_bs4096", 60),
        *converged("bs8k_resnet101", 20, target),
    ]
    blocks = judge_as_mlperf(compute_findings(made, [], None))
    tables = [block for block in blocks if isinstance(block, Table)]
    unjudged, *judged = [{row[0]: row[6:] for row in table.rows} for table in tables]
    assert unjudged == {"digits": [], "bs8k_resnet101": []}
    assert sum("Not judged" in str(block) for block in blocks) == 1
    references = {name: cells[0] for table in judged for name, cells in table.items()}
    assert references == {"mlperf_bs4096": "35.74", "mlperf06_bs4096": "60.00"}
