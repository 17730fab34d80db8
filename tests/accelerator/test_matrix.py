"""Tests that runs on the stand-in of an accelerator are bit-equal to those on the CPU.

They cover every strategy, and with one strategy of each kind every value of the settings that
affect the device's work but some loaders, which take their batches to the device without a
strategy. The other strategies have the same code for these settings: `make soak`, `python
tests/accelerator` and the GPU benchmark's slice `runs` cover the values with them too.
"""

import json
from pathlib import Path

import pytest
from helpers.device_runs import (
    AXES,
    FLOAT16_RUN,
    GOLDEN,
    PHASES_RUN,
    STRATEGIES,
    TEXTS,
    VARIANTS,
    ComparedRun,
    compare,
    image_runs,
    make_images,
    text_runs,
    versions,
)

WRITE = "python tests/accelerator --write"
CELLS = [
    *(cell for strategy in STRATEGIES for cell in (*image_runs(strategy), *text_runs(strategy))),
    FLOAT16_RUN,
    PHASES_RUN,
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=cell.name,
            marks=[pytest.mark.slow] * bool(cell.values)
            + [pytest.mark.soak] * bool(cell.values and cell.strategy in VARIANTS)
            + [pytest.mark.dali] * ("dali" in cell.values),
        )
        for cell in CELLS
    ],
)
def test_a_run_is_that_of_the_cpu(cell: ComparedRun, images: Path, tmp_path: Path) -> None:
    """And a step asks no more of the device than the golden file says, and no less."""
    outcome = compare(cell.recipe(images), tmp_path)
    assert not outcome.differences
    golden = json.loads(GOLDEN.read_text())
    expected, found = golden["steps"][cell.name], outcome.step.summary()
    if versions()["torch"] != golden["torch"]:
        expected["operators"] = found["operators"]
    assert found == expected, f"if that is meant: {WRITE}"


SHARING = [
    ComparedRun("images", "sync", ("decoders",), STRATEGIES["sync"] | AXES["loader"]["decoders"]),
    *(ComparedRun(*TEXTS[name][:1], "allreduce", (name,), TEXTS[name][1]) for name in TEXTS),
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", SHARING, ids=lambda cell: cell.name)
def test_a_gpu_that_shares_host_memory_copies_no_page_later(
    cell: ComparedRun, images: Path, tmp_path: Path
) -> None:
    """A decoder process overwrote such pages with its next batch before a Mac's GPU read them."""
    assert not compare(cell.recipe(images), tmp_path, shares_memory=True).differences


def test_no_budget_is_left_over() -> None:
    assert set(json.loads(GOLDEN.read_text())["steps"]) == {cell.name for cell in CELLS}
