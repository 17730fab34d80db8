"""`lsgd.plan memory`: which micro-batches fit which GPUs."""

import pytest
from helpers.composed import compose_recipe
from helpers.usage_errors import usage_error

from lsgd.plan import memory
from lsgd.plan.__main__ import main
from lsgd.plan.phases import largest_phase
from lsgd.profile.memory import StepMemory


def of(gigabytes: float) -> StepMemory:
    return StepMemory(10**9, 0, 10**9, 10**9, int((gigabytes - 3) * 1e9))


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may take 0.85 of a GPU."""

    def counted(recipe: object, workers: list[int], *, world_size: int) -> dict[int, StepMemory]:
        assert (workers, world_size) == ([1, 2, 4], 2)
        factor = 1 if recipe.precision == "float32" else 0.5  # type: ignore[attr-defined]
        return {1: of(14 * factor), 2: of(33 * factor), 4: of(119 * factor)}

    monkeypatch.setattr(memory, "count_step", counted)
    assert main(["memory", "+recipe=bs256", "--processes", "2"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert ["float32", "none", "2", "2", "4"] in rows
    assert ["bfloat16", "1", "2", "4", "4"] in rows
    parts = ["1.00", "0.00", "1.00", "1.00", "116.00", "119.00", "fits 141 GB"]
    assert ["float32", "4", "128", *parts] in rows


def test_a_plan_says_it_of_its_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(recipe: object, workers: list[int], *, world_size: int) -> dict[int, StepMemory]:
        asked.append((workers, world_size))
        return {workers[0]: of(34)}

    monkeypatch.setattr(memory, "count_step", counted)
    recipe = compose_recipe("+recipe=bs8k", "workers_per_pass=4")
    assert memory.memory_line(recipe, 256).startswith(
        "Memory of each GPU: 34.00 GB for micro-batches of 1 worker in float32, which fits 40 GB;"
    )
    assert "micro-batches of 4 workers" in memory.memory_line(recipe, 8)
    assert asked == [([1], 256), ([4], 8)]


@pytest.mark.parametrize(
    ("words", "largest"),
    [
        # Later 8 GPUs host a worker each, of 128 images; before, 8 workers of 64.
        (["workers=64", "worker_batch=64", "batch_schedule=[[10,8,128]]"], (64, 64, 224)),
        # As many pixels in a worker; the last phase hosts 32 workers on each GPU.
        (["workers=8", "batch_growth.milestones=[30]", "batch_growth.factor=32"], (256, 32, 224)),
        # Of micro-batches of one worker the larger images count.
        (["workers_per_pass=1", "image_sizes.points=[[0,128],[30,128],[30,288]]"], (256, 32, 288)),
    ],
)
def test_a_plan_says_it_of_the_phase_with_the_largest_micro_batches(
    words: list[str], largest: tuple[int, int, int]
) -> None:
    recipe = compose_recipe("+recipe=bs8k", "workers_per_pass=8", *words)
    found = largest_phase(recipe, 8)
    assert (found.workers, found.worker_batch, found.data.image_size) == largest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+recipe=ptb_small"], "lsgd.plan memory"),
        (["+recipe=bs256", "--processes", "9"], "9 processes cannot share workers=8"),
        (["+recipe=bs256", "--processes", "0"], "0 is not a whole number of 1 or more"),
        (["+recipe=bs256", "rehearse=true"], "leave it out to plan the real run"),
    ],
)
def test_refusals(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in usage_error(main, capsys, "memory", *words)
